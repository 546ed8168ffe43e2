"""Models to and from the files of other tools: what ``rankmill convert`` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.exchange.conversion import CONVERTED_FROM, SOURCE_SHA256, Imported
from rankmill.scorer.exchange.formats import read_from, write_as
from rankmill.scorer.model_service import ModelIdentity

SUFFIXES = {"xgboost": ".json"}  # where the tool knows its own files by their names
TARGETS = {".onnx": "onnx", ".c": "c", ".txt": "lightgbm", ".xml": "ranklib"}
"""Format by suffix of the file to write, where it can be no other: both XGBoost and Solr have ``.json``."""
Report = dict[str, Any]


def target_of(out: Path) -> str:
    """Return the format that the suffix of the file ``out`` stands for; InputError where it is not known, or could be several."""
    target = TARGETS.get(out.suffix.lower())
    if target is None:
        several = "it may be xgboost or solr" if out.suffix == ".json" else f"{', '.join(TARGETS)} are known"
        raise InputError(f"{out}: the suffix does not say the format ({several}); say it with --to FORMAT")
    return target


def convert_to(
    target: str,
    model: str,
    out: Path,
    registry: Path,
    *,
    name: str | None = None,
    features: Sequence[str] | None = None,
    missing: str = "keep",
    nearest_thresholds: bool = False,
    n_rounds: int | None = None,
    overwrite: bool = False,
) -> Report:
    """Write ``model``, a file or a version in ``registry``, in the format ``target`` to ``out``, and say how exact it is.

    Raises
    ------
    InputError
        ``out`` is there and is not to be replaced, or has a suffix by which the tool would not know it.
    RankmillError, rankmill.foundation.errors.RankmillError
        There is no such model or format, or the format cannot say the model.
    """
    from rankmill.scorer.model_service import find_model

    checked_out(out, overwrite=overwrite)
    suffix = SUFFIXES.get(target)
    if suffix is not None and out.suffix != suffix:
        raise InputError(f"{out}: {target} knows its models by their suffix, name it {out.stem or 'model'}{suffix}")
    forest, identity = find_model(model, registry)
    called = name or _called(identity, model)
    forest = forest if n_rounds is None else forest.truncated(n_rounds)
    written = write_as(
        target, forest, name=called, features=features, missing=missing, nearest_thresholds=nearest_thresholds
    )
    write_atomically(out, written.data)
    return {
        "out": str(out),
        "format": target,
        "model": called if identity.name is None else f"{identity.name}@{identity.number}",
        "sha256": identity.sha256,
        "trees": forest.n_trees,
        "features": forest.n_features,
        "bytes": len(written.data),
        "exactness": written.exactness,
        "bound": written.bound,
        "notes": list(written.notes),
    }


def convert_from(
    source: str,
    file: Path,
    *,
    out: Path | None = None,
    name: str | None = None,
    registry: Path,
    features: Sequence[str] | None = None,
    n_rounds: int | None = None,
    absent: str | None = None,
    overwrite: bool = False,
) -> Report:
    """Read the model of another tool and write it to ``out``, or register it as the next version of ``name``.

    Raises
    ------
    InputError
        There is no such file, ``out`` is there and is not to be replaced, or both or neither of ``out`` and ``name`` are
        given.
    RankmillError, rankmill.foundation.errors.RankmillError
        It is no sound model of that tool, cannot be said here, or the registry refuses the name.
    """
    from rankmill.registry import Registry
    from rankmill.registry.names import check_name

    if (out is None) == (name is None):
        raise InputError("name one place for the model: --name NAME registers it, -o FILE.rankmill writes a file")
    if out is not None:
        checked_out(out, overwrite=overwrite)
    if name is not None:
        check_name(name)
    if not file.is_file():
        raise InputError(f"{file}: expected a model of {source}, found no such file")
    found = read_from(source, file.read_bytes(), str(file), features=features, n_rounds=n_rounds, absent=absent)
    forest = found.forest
    report: Report = {
        "format": source,
        "from": str(file),
        "sha256": forest.sha256,
        "trees": forest.n_trees,
        "features": forest.n_features,
        "notes": list(found.notes),
    }
    if name is None:
        assert out is not None  # noqa: S101 (one of the two is given)
        forest.save(out)
        return report | {"out": str(out)}
    version = Registry(registry).register(name, forest.to_bytes(), manifest=facts_of(found))
    return report | {"model": str(version), "registry": str(registry)}


def facts_of(found: Imported) -> Report:
    """Return the manifest of a version that was read from another tool: nothing is known of its training here."""
    forest = found.forest
    return {
        "features": list(forest.feature_names),
        "dataset_digest": None,
        "parameters": {},
        "metrics": {},
        "objective": forest.objective,
        CONVERTED_FROM: forest.info[CONVERTED_FROM],
        SOURCE_SHA256: forest.info[SOURCE_SHA256],
        "trees": forest.n_trees,
        "rounds": forest.n_rounds,
        **({"notes": list(found.notes)} if found.notes else {}),
    }


def checked_out(out: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is, or where there is no folder."""
    if out.is_dir():
        raise InputError(f"{out}: expected the name of a file, found a folder")
    if out.exists() and not overwrite:
        raise InputError(f"{out}: is there already; take another name, or --overwrite it")
    if not out.parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.parent}")


def names_in(given: str) -> list[str]:
    """Return the names of features that ``--features`` gives: a file with one a line, or names between commas.

    >>> names_in("bm25,f2..f4")
    ['bm25', 'f2', 'f3', 'f4']
    """
    path = Path(given)
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: expected a name a line in UTF-8: {error.reason} at byte {error.start}"
            ) from error
        return [line.strip() for line in lines if line.strip()]
    return [name for part in given.split(",") for name in _numbered(part.strip())]


def _numbered(part: str) -> list[str]:
    """Return the names that ``f1..f46`` stands for; any other name as it is."""
    found = re.fullmatch(r"(.*?)(0|[1-9][0-9]{0,6})\.\.(.*?)(0|[1-9][0-9]{0,6})", part)
    if found is None or found[1] != found[3] or int(found[2]) > int(found[4]):
        return [part]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[4]) + 1)]


def render(report: Report) -> str:
    """Return what was done, for people to read."""
    shape = f"{report['trees']:,} trees over {report['features']:,} features"
    if "from" in report:
        where = f"wrote {report['out']}" if "out" in report else f"registered {report['model']} in {report['registry']}"
        lines = [f"{where}: {shape}, from {report['from']}"]
    else:
        lines = [
            f"wrote {report['out']}: {report['model']} for {report['format']}, {shape}",
            f"scores: {report['exactness']}",
        ]
    return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])


def _called(identity: ModelIdentity, reference: str) -> str:
    return Path(reference).stem if identity.name is None else identity.name
