"""Convert models to and from the formats of other tools: the work of ``rankmill convert``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, left_out, to_line
from rankmill.foundation.storage.location import Location
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.exchange.conversion import CONVERTED_FROM, SOURCE_SHA256, ForeignForest
from rankmill.scorer.exchange.formats import read_from, write_as
from rankmill.scorer.options import ConvertOptions

SUFFIXES = {"xgboost": ".json"}  # required by tools that detect the format by name
TARGETS = {".onnx": "onnx", ".txt": "lightgbm"}
"""Format by suffix of the output file, if it is unique; ``.json`` may be XGBoost or Solr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The result of a conversion: to another tool, with its accuracy there, or from its file ``source``."""

    format: str
    sha256: str
    trees: int
    features: int
    notes: tuple[str, ...]
    source: str | None = left_out()
    out: str | None = left_out()
    model: str | None = left_out()
    registry: str | None = left_out()
    bytes: int | None = left_out()
    exactness: str | None = left_out()
    bound: float | None = left_out()

    def to_json(self) -> str:
        """Return one JSON object on one line; ``source`` is called ``from`` there."""
        facts = as_json(self)
        if self.source is not None:
            facts["from"] = facts.pop("source")
        return to_line(facts)

    def render(self) -> str:
        """Return the result as text."""
        shape = f"{f'{self.trees:,} trees over ' if self.trees else ''}{self.features:,} features"
        if self.source is None:
            lines = [f"wrote {self.out}: {self.model} for {self.format}, {shape}", f"scores: {self.exactness}"]
        else:
            where = f"registered {self.model} in {self.registry}" if self.out is None else f"wrote {self.out}"
            lines = [f"{where}: {shape}, from {self.source}"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def target_of(out: Path) -> str:
    """Return the format of the file ``out`` by its suffix; InputError if it is unknown or ambiguous."""
    target = TARGETS.get(out.suffix.lower())
    if target is None:
        several = "it may be xgboost or solr" if out.suffix == ".json" else f"{', '.join(TARGETS)} are known"
        raise InputError(f"{out}: the suffix does not determine the format ({several}); choose it with --to FORMAT")
    return target


def convert_to(
    target: str,
    model: str,
    out: Path,
    registry: Location,
    *,
    options: ConvertOptions,
    overwrite: bool = False,
) -> Conversion:
    """Write ``model``, a file or a version in ``registry``, in the format ``target`` to ``out``.

    Return how exact it is.

    Raises
    ------
    InputError
        ``out`` exists and may not be replaced, or has a suffix that the tool would not recognise.
    RankmillError, rankmill.foundation.errors.RankmillError
        The model or format does not exist, or the format cannot express the model.
    """
    from rankmill.scorer.models.loading import forest_of
    from rankmill.scorer.models.model_service import find_model

    checked_out(out, overwrite=overwrite)
    suffix = SUFFIXES.get(target)
    if suffix is not None and out.suffix != suffix:
        raise InputError(f"{out}: {target} needs another suffix; name the file {out.stem or 'model'}{suffix}")
    found, identity = find_model(model, registry)
    called = options.name or identity.name or Path(model).stem
    if options.n_rounds is not None:
        found = forest_of(found, spelled("n_rounds")).truncated(options.n_rounds)
    written = write_as(
        target,
        found,
        name=called,
        features=names_in(options.features),
        missing=options.missing,
        nearest_thresholds=options.nearest_thresholds,
    )
    write_atomically(out, written.data)
    return Conversion(
        format=target,
        sha256=identity.sha256,
        trees=found.n_trees,
        features=found.n_features,
        notes=written.notes,
        out=str(out),
        model=called if identity.name is None else f"{identity.name}@{identity.number}",
        bytes=len(written.data),
        exactness=written.exactness,
        bound=written.bound,
    )


def convert_from(
    source: str,
    file: Path,
    *,
    out: Path | None = None,
    registry: Location,
    options: ConvertOptions,
    overwrite: bool = False,
) -> Conversion:
    """Read the model of another tool and write it to ``out``, or register it as the next version of ``name``.

    Raises
    ------
    InputError
        The file does not exist, ``out`` exists and may not be replaced, or both or neither of ``out`` and ``name`` are
        given.
    RankmillError, rankmill.foundation.errors.RankmillError
        It is not a valid model of that tool, cannot be expressed here, or the name is invalid.
    """
    from rankmill.registry import Registry
    from rankmill.registry.names import check_name

    name, features = options.name, names_in(options.features)
    if (out is None) == (name is None):
        raise InputError("choose one output: --name NAME registers the model, -o FILE.rankmill writes a file")
    if out is not None:
        checked_out(out, overwrite=overwrite)
    if name is not None:
        check_name(name)
    if not file.is_file():
        raise InputError(f"{file}: no such file; expected a model of {source}")
    found = read_from(
        source, file.read_bytes(), str(file), features=features, n_rounds=options.n_rounds, absent=options.absent
    )
    forest = found.forest
    done = Conversion(
        format=source, sha256=forest.sha256, trees=forest.n_trees, features=forest.n_features, notes=found.notes,
        source=str(file),
    )  # fmt: skip
    if out is not None:
        forest.save(out)
        return replace(done, out=str(out))
    version = Registry(registry).register(str(name), forest.to_bytes(), manifest=facts_of(found))
    return replace(done, model=str(version), registry=str(registry))


def facts_of(found: ForeignForest) -> dict[str, object]:
    """Return the manifest of a version converted from another tool, whose training is unknown."""
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
    """Raise InputError if the file exists already or its folder does not exist."""
    if out.is_dir():
        raise InputError(f"{out}: expected the name of a file, found a folder")
    if out.exists() and not overwrite:
        raise InputError(f"{out}: exists already; choose another name, or replace it with --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"{out}: no such folder {out.parent}; create it first")


def names_in(given: str | None) -> list[str] | None:
    """Parse ``--features``: a file with one name per line, or names separated by commas; None if not given.

    >>> names_in("bm25,f2..f4")
    ['bm25', 'f2', 'f3', 'f4']
    """
    if given is None:
        return None
    path = Path(given)
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: expected one name per line in UTF-8: {error.reason} at byte {error.start}"
            ) from error
        return [line.strip() for line in lines if line.strip()]
    return [name for part in given.split(",") for name in _numbered(part.strip())]


def _numbered(part: str) -> list[str]:
    """Expand ``f1..f46`` to names; any other name stays as it is."""
    found = re.fullmatch(r"(.*?)(0|[1-9][0-9]{0,6})\.\.(.*?)(0|[1-9][0-9]{0,6})", part)
    if found is None or found[1] != found[3] or int(found[2]) > int(found[4]):
        return [part]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[4]) + 1)]
