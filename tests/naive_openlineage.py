"""What the specification of OpenLineage 2-0-2 asks of a run event and of the facets that we write, as plain assertions.

By hand from ``spec/OpenLineage.json`` (``RunEvent``, ``Run``, ``Job``, ``Dataset``, ``BaseFacet``) and ``spec/facets/*.json``: what is
required, which type it has, and what ``format`` means.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

KINDS = {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}
NUMBERS = {"rowCount": int, "size": int, "fileCount": int}
REQUIRED: dict[str, dict[str, Any]] = {
    "parent": {"run": dict, "job": dict},
    "nominalTime": {"nominalStartTime": str},
    "errorMessage": {"message": str, "programmingLanguage": str},
    "processing_engine": {"version": str},
    "jobType": {"processingType": str, "integration": str},
    "schema": {"fields": list},
    "version": {"datasetVersion": str},
    "inputStatistics": {},
    "outputStatistics": {},
}


def check(event: dict[str, Any]) -> None:
    """AssertionError where ``event`` breaks a rule."""
    assert event.keys() <= {"eventType", "eventTime", "run", "job", "inputs", "outputs", "producer", "schemaURL"}
    assert event["eventType"] in KINDS
    date_time(event["eventTime"])
    uri(event["producer"])
    assert event["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    run_id(event["run"])
    facets(event["run"].get("facets", {}))
    job(event["job"])
    facets(event["job"].get("facets", {}))
    for side in ("input", "output"):
        for dataset in event[f"{side}s"]:
            assert dataset.keys() <= {"namespace", "name", "facets", f"{side}Facets"}
            assert isinstance(dataset["namespace"], str)
            assert isinstance(dataset["name"], str)
            facets(dataset["facets"])
            facets(dataset.get(f"{side}Facets", {}))


def facets(found: dict[str, Any]) -> None:
    for name, facet in found.items():
        uri(facet["_producer"])
        uri(facet["_schemaURL"])
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/")
        own = not name.startswith("rankmill_")
        if own:
            place = re.fullmatch(r".*/facets/\d+-\d+-\d+/(\w+)\.json#/\$defs/(\w+)", facet["_schemaURL"])
            assert place
            assert place[1] == place[2]
            assert place[1].lower().startswith({"version": "datasetversion"}.get(name, name.replace("_", "").lower()))
        for key, kind in REQUIRED[name].items() if own else ():
            assert isinstance(facet[key], kind), (name, key)
        for key, kind in NUMBERS.items():
            assert isinstance(facet.get(key, 0), kind)
    if "parent" in found:
        for place in (found["parent"], found["parent"].get("root", found["parent"])):
            run_id(place["run"])
            job(place["job"])
    if "nominalTime" in found:
        date_time(found["nominalTime"]["nominalStartTime"])
    for field in found.get("schema", {}).get("fields", []):
        assert isinstance(field["name"], str)
        assert isinstance(field.get("type", ""), str)


def job(found: dict[str, Any]) -> None:
    assert isinstance(found["namespace"], str)
    assert isinstance(found["name"], str)


def run_id(run: dict[str, Any]) -> None:
    assert str(uuid.UUID(run["runId"])) == run["runId"]


def date_time(text: str) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    datetime.fromisoformat(text)


def uri(text: str) -> None:
    """RFC 3986: a scheme, and only the characters that an address may have."""
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", text)
    assert urlsplit(text).scheme
