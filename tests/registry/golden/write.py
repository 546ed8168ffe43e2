"""Writes a golden registry and golden bundles beside it, by the code of the day.  Run by hand when a format number is new.

``python -m tests.registry.golden.write FOLDER`` writes tests/registry/golden/FOLDER, which must not be there: what an old
version wrote must be read for ever.  Tests read these folders and never run this.  Git keeps neither the read-only modes of
blobs nor empty folders such as tmp/: a reader may count on neither.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rankmill.registry import Registry
from rankmill.registry.retention_rules import RetentionRules
from rankmill.registry.stored_records import AliasPolicy
from tests.registry.conftest import outcome

FOLDER = Path(__file__).parent
MODELS = FOLDER.parent.parent / "scorer" / "golden"


def facts(features: list[str], ndcg: float) -> dict[str, Any]:
    """A manifest as ``rankmill train`` writes one."""
    return {
        "features": features,
        "dataset_digest": "9b400e115d65ccf22fc1f8da3a307f58e99412b8b24b9319a9fb016ba79773ee",
        "binspec_digest": "fb32e77cfa111f9ee9f2e2e67521f277d776b68dbc949dc11ca12c2eac9fe884",
        "parameters": {"objective": "lambdamart", "learning_rate": 0.1, "monotone": {}},
        "metrics": {"train": {"ndcg@10": ndcg}, "valid": {"ndcg@10": ndcg - 0.1}},
        "max_grade": 3,
        "best_round": 3,
    }


def write(root: Path) -> None:
    """Everything that a log can say, in the newest format.

    ``format1`` was written by an earlier form of this function: three versions, promotions and a rollback, in a registry
    where nothing is protected and versions have no attachments.  ``format2`` has no gate that let a worse version pass.
    """
    registry, features = Registry(root), ["length", "übereinstimmung", "clicks per day"]
    registry.prepare(protected=("production",))
    kinds = ("no_trees", "by_hand", "best_first", "oblivious", "weighted")
    for number, kind in enumerate(kinds, start=1):
        model = (MODELS / f"{kind}.rankmill").read_bytes()
        notes = {"notes": f"night {number}".encode(), "empty": b""} if number % 2 else {}
        registry.register(
            "web", model, manifest=facts(features, 0.5 + number / 16), attachments=notes, reason=f"night {number}"
        )
    gate(registry, 1, baseline=None, passed=True)
    registry.promote("web", 1, reason="first")
    gate(registry, 2, baseline=1, passed=False)
    registry.promote("web", 2, force=True, reason="größer \u2265 0.5")
    gate(registry, 3, baseline=2, passed=True, worse=True)
    registry.promote("web", 3, expect=2)
    registry.rollback("web", reason="slow on phones")
    registry.promote("web", 1, alias="shadow")
    registry.unset("web", "shadow")
    registry.tag("web", 3, "quality", "good")
    registry.tag("web", 1, "quality", "poor")
    registry.tag("web", 1, "quality", None)
    registry.protect("web", "canary", AliasPolicy(metric="ndcg@10", margin=0.002, never_worse=True))
    registry.protect("web", "production", None)
    for _ in range(3):  # marked, swept, out of the trash
        registry.gc(rules=RetentionRules(keep=1, grace=0.0))
    registry.import_(FOLDER / "version1.tar", name="shop.2", reason="to compare", move_aliases=True)


def gate(registry: Registry, version: int, *, baseline: int | None, passed: bool, worse: bool = False) -> None:
    """Record a result of the gate for production."""
    report = {"version": version, "passed": passed}
    registry.record_gate("web", outcome(version, passed=passed, baseline=baseline, worse=worse), report)


def write_bundles() -> None:
    """The first registry's model as a history, and a version of it."""
    registry = Registry(FOLDER / "format1")
    registry.export("web", FOLDER / "history1.tar")
    registry.export("web@3", FOLDER / "version1.tar")


def seen(root: Path) -> dict[str, Any]:
    """Everything that a reader is told, in words of JSON that later versions must give again."""
    registry = Registry(root)
    told: dict[str, Any] = {
        name: {
            "log": [entry.digest for entry in registry.log(name)],
            "versions": [
                {
                    "version": version.number,
                    "sha256": version.sha256,
                    "size": version.size,
                    "manifest": version.manifest_sha256,
                    "aliases": list(version.aliases),
                    "time": version.registered.time,
                    "reason": version.registered.reason,
                }
                for version in registry.versions(name)
            ],
        }
        for name in registry.names()
    }
    for name, model in told.items():  # what the first registries could not say is told where it is said
        for version, row in zip(registry.versions(name), model["versions"], strict=True):
            further = {
                "tags": version.tags,
                "attachments": dict(version.row.attachments),
                "gates": {alias: entry.number for alias, entry in version.gates.items()},
                "swept": version.swept_in,
            }
            row |= {key: value for key, value in further.items() if value}
    return told


if __name__ == "__main__":
    if not (FOLDER / "version1.tar").exists():
        write_bundles()
    target = FOLDER / sys.argv[1]
    target.mkdir()
    os.environ["LOGNAME"] = "operator"
    with patch("socket.gethostname", return_value="trainer-1"):
        write(target)
    (target / "ballast").unlink()  # a megabyte of nothing
    told = json.dumps(seen(target), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    target.with_suffix(".json").write_text(told, encoding="utf-8")
