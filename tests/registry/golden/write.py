"""Writes a golden registry beside it, by the code of the day.  Run by hand when a format number is new.

``python -m tests.registry.golden.write FOLDER`` writes tests/registry/golden/FOLDER, which must not be there: what an old
version wrote must be read for ever.  Tests read these folders and never run this.  Git keeps neither the read-only modes of
blobs nor the empty folder tmp/: a reader may count on neither.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from registry import Registry

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
    """Register three versions, promote and roll back; a second model with one version and an alias."""
    registry, features = Registry(root), ["length", "übereinstimmung", "clicks per day"]
    models = [(MODELS / f"{kind}.rankmill").read_bytes() for kind in ("no_trees", "by_hand", "best_first")]
    for number, model in enumerate(models, start=1):
        registry.register("web", model, manifest=facts(features, 0.5 + number / 8), reason=f"night {number}")
    registry.promote("web", 1, reason="first")
    registry.promote("web", 3, expect=1, reason="größer \u2265 0.5")
    registry.promote("web", 2, alias="shadow")
    registry.rollback("web", reason="slow on phones")
    registry.register("shop.2", models[0], manifest=facts(features, 0.25) | {"parent": "web@1"})
    registry.promote("shop.2", 1, alias="canary")


def seen(root: Path) -> dict[str, Any]:
    """Everything that a reader is told, in words of JSON that later versions must give again."""
    registry = Registry(root)
    return {
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


if __name__ == "__main__":
    target = FOLDER / sys.argv[1]
    target.mkdir()
    os.environ["LOGNAME"] = "operator"
    with patch("socket.gethostname", return_value="trainer-1"):
        write(target)
    told = json.dumps(seen(target), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    target.with_suffix(".json").write_text(told, encoding="utf-8")
