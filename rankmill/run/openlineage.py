"""OpenLineage events of the run and of its stages, as JSON lines.

Every run emits START and one of COMPLETE, FAIL and ABORT; so does every executed stage, as a run whose parent is the whole run.
A killed run has no end event, and the next run does not add one.  The events follow the specification 2-0-2
(github.com/OpenLineage/OpenLineage, ``spec/``).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, Literal

import rankmill
from rankmill.foundation.storage.url_arguments import url_of
from rankmill.run.events import (
    Artefact,
    Event,
    RunEnded,
    RunStarted,
    StageDone,
    StageFailed,
    StageStarted,
)
from rankmill.run.jsonl_file import RunsFile
from rankmill.run.log_lines import error_line
from rankmill.run.plain_json import Clock, json_line, plain, rfc3339

BOUND = 16 * 2**20
PRODUCER = f"pkg:generic/rankmill@{rankmill.__version__}"
"""A package URL: identifies the producer of events without a web address."""
_SPECIFICATION = "https://openlineage.io/spec"
_RUN_EVENT = f"{_SPECIFICATION}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = {
    "parent": "1-1-0/ParentRunFacet",
    "nominalTime": "1-0-1/NominalTimeRunFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
    "processing_engine": "1-1-1/ProcessingEngineRunFacet",
    "jobType": "2-0-3/JobTypeJobFacet",
    "schema": "1-1-1/SchemaDatasetFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet",
    "inputStatistics": "1-0-0/InputStatisticsInputDatasetFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
}
_BASE_FACETS = {"rankmill_outcome": "RunFacet", "rankmill_facts": "DatasetFacet"}
"""Our own facets, with the schema of a general facet."""
_COUNTS = {"rows": "rowCount", "bytes": "size", "files": "fileCount"}
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "pkg:generic/rankmill")

EventType = Literal["START", "COMPLETE", "FAIL", "ABORT"]
Json = dict[str, Any]


class LineageFile:
    """Observer that appends OpenLineage events to ``path``.

    Parameters
    ----------
    path
        The file; if it exceeds ``bound`` bytes, the oldest runs are removed.
    model
        The name of the model and of the job; stages are ``MODEL.ingest`` and so on.
    namespace
        Namespace of the jobs.
    """

    def __init__(
        self, path: Path, model: str, clock: Clock | None = None, *, namespace: str = "rankmill", bound: int = BOUND
    ) -> None:
        self._file = RunsFile(path, _begins, bound)
        self._job, self._namespace = model, namespace
        self._clock = clock or Clock()
        self._run = uuid.uuid5(_NAMESPACE, "")
        self._folder = Path()
        self._nominal: Json = {}
        self._inputs: dict[str, Sequence[Artefact]] = {}
        self._read: list[Artefact] = []
        self._made: list[Artefact] = []
        self._ended = False
        self._broken: EventType | None = None

    def __call__(self, event: Event) -> None:
        """Append ``event``."""
        match event:
            case RunStarted():
                self._run = run_uuid(event.run_id)
                self._folder = event.config.absolute().parent
                if event.logical_date is not None:
                    begins = datetime.combine(event.logical_date, time(), UTC)
                    self._nominal = {"nominalTime": facet("nominalTime", nominalStartTime=rfc3339(begins))}
                self._file.drop_old_runs()
                self._append("START")
            case StageStarted():
                self._inputs[event.stage] = event.inputs
                self._read += event.inputs
                self._append("START", event.stage, event.inputs)
            case StageDone():
                self._made += event.outputs
                self._append("COMPLETE", event.stage, self._inputs.get(event.stage, ()), event.outputs)
            case StageFailed():
                kind: EventType = "ABORT" if event.stopped else "FAIL"
                error = {"message": error_line(event.error), "programmingLanguage": "PYTHON"}
                facets = {} if event.stopped else {"errorMessage": facet("errorMessage", **error)}
                self._append(kind, event.stage, self._inputs.get(event.stage, ()), facets=facets)
                self._broken = kind
            case RunEnded() if not self._ended:  # a signal may arrive while the end is written
                self._ended = True
                self._append_end(event)
            case _:
                pass

    def _append_end(self, event: RunEnded) -> None:
        by_outcome: dict[str, EventType] = {"failed": "FAIL", "stopped": "ABORT"}
        kind = self._broken or by_outcome.get(event.outcome, "COMPLETE")
        outcome = facet("rankmill_outcome", outcome=event.outcome, exitCode=event.exit_code)
        made = {(each.kind, each.name): each for each in self._made}
        read = {(each.kind, each.name): each for each in self._read if (each.kind, each.name) not in made}
        self._append(kind, None, [*read.values()], [*made.values()], {"rankmill_outcome": outcome})

    def _append(
        self,
        kind: EventType,
        stage: str | None = None,
        inputs: Sequence[Artefact] = (),
        outputs: Sequence[Artefact] = (),
        facets: Mapping[str, Json] | None = None,
    ) -> None:
        run, job = self._run, self._job
        run_facets = {
            **self._nominal,
            "processing_engine": facet("processing_engine", name="rankmill", version=rankmill.__version__),
            **(facets or {}),
        }
        if stage is not None:
            parent = {"run": {"runId": str(run)}, "job": {"namespace": self._namespace, "name": job}}
            run_facets["parent"] = facet("parent", **parent, root=parent)
            run, job = uuid.uuid5(run, stage), f"{job}.{stage}"
        job_type = facet(
            "jobType", processingType="BATCH", integration="RANKMILL", jobType="RUN" if stage is None else "STAGE"
        )
        record = {
            "eventTime": rfc3339(self._clock.now()),
            "eventType": kind,
            "run": {"runId": str(run), "facets": run_facets},
            "job": {"namespace": self._namespace, "name": job, "facets": {"jobType": job_type}},
            "inputs": [self._dataset(each, "input") for each in inputs],
            "outputs": [self._dataset(each, "output") for each in outputs],
            "producer": PRODUCER,
            "schemaURL": _RUN_EVENT,
        }
        self._file.append(json_line(record))

    def _dataset(self, given: Artefact, side: Literal["input", "output"]) -> Json:
        """Return a dataset of OpenLineage: files by absolute path, objects by bucket and key, models by name without a version."""
        facts = dict(given.facts)
        columns = facts.pop("columns", None)
        version = given.digest
        if given.kind == "model":
            name, _, number = given.name.partition("@")
            where, version = {"namespace": "rankmill-models", "name": name}, number or version
        elif given.kind == "alias":
            where = {"namespace": "rankmill-models", "name": given.name}
        elif (url := url_of(given.name)) is not None:
            where = {"namespace": f"{url.scheme}://{url.bucket}", "name": url.key}
        else:
            where = {"namespace": "file", "name": str((self._folder / given.name).absolute())}
        facets: Json = {} if version is None else {"version": facet("version", datasetVersion=version)}
        if columns:
            facets["schema"] = facet("schema", fields=columns)
        counts = {theirs: facts.pop(ours) for ours, theirs in _COUNTS.items() if isinstance(facts.get(ours), int)}
        if given.kind == "model" and given.digest is not None:
            facts["sha256"] = given.digest
        if facts:
            facets["rankmill_facts"] = facet("rankmill_facts", **facts)
        dataset: Json = {**where, "facets": facets}
        if counts:
            dataset[f"{side}Facets"] = {f"{side}Statistics": facet(f"{side}Statistics", **counts)}
        return dataset


def facet(name: str, /, **content: Any) -> Json:
    """Return the facet ``name`` with the fields that every facet needs."""
    if name in _BASE_FACETS:
        schema = f"{_SPECIFICATION}/2-0-2/OpenLineage.json#/$defs/{_BASE_FACETS[name]}"
    else:
        path = _FACETS[name]
        schema = f"{_SPECIFICATION}/facets/{path}.json#/$defs/{path.partition('/')[2]}"
    return {"_producer": PRODUCER, "_schemaURL": schema, **plain(content)}


def run_uuid(run_id: str) -> uuid.UUID:
    """Return ``run_id`` if it is a UUID, else a UUID derived from it."""
    try:
        return uuid.UUID(run_id)
    except ValueError:
        return uuid.uuid5(_NAMESPACE, run_id)


def _begins(record: Mapping[str, Any]) -> bool:
    return record.get("eventType") == "START" and "parent" not in record.get("run", {}).get("facets", {})
