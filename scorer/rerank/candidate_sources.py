"""Open files of candidates as sources for a model, and check that they can be read as its training data were."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from glob import has_magic
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import CandidatesRejected, InputError, InvalidParameter
from rankmill.foundation.options import made_of, spelled
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.read.batch import RowBatch, Source
from rankmill.pipeline.read.columns import TableColumns, guesses_line, guesses_of
from rankmill.pipeline.read.files import find_files, with_rows
from rankmill.scorer.models.model import Model, Predictor, check_kinds
from rankmill.scorer.options import CandidateOptions

PathLike = str | os.PathLike[str]
BATCH_ROWS = 65_536  # rows per batch when reading a dataset


def read_options(options: CandidateOptions, model: Model) -> ReadOptions:
    """Return how to read candidates for ``model``.

    Options that are None come from its training, else the reader's default.

    Grades are read as in the training judgments.
    """
    requested = {"absent": options.absent, "index_base": options.index_base, "negative_grades": None}
    known = {key: model.info.get(key) if value is None else value for key, value in requested.items()}
    words = model.info.get("grades")
    given = {
        "grades": tuple((word, int(str(grade))) for word, grade in words.items()) if isinstance(words, dict) else (),
        "n_features": options.n_features,
        "grade_required": False,
        "delimiter": options.delimiter,
        "decimal_comma": options.decimal_comma,
        "columns": options.columns or {},
        "known_features": frozenset(model.feature_names),
        "categorical": tuple(sorted(model.categories)),
    }
    return made_of(ReadOptions, given | {key: value for key, value in known.items() if value is not None})


def paths_of(subject: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return ``subject`` as a list of paths."""
    if isinstance(subject, str | os.PathLike):
        return [Path(subject)]
    if not isinstance(subject, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in subject):
        raise InvalidParameter(
            f"expected the path of a file or folder, or a list of paths, got a {type(subject).__name__}; write the "
            "rows to a file"
        )
    return [*map(Path, subject)]


def files_of(paths: Sequence[Path], form: str = "auto", *, announce: bool = False) -> list[Path]:
    """Return the files that ``paths`` name, without those that have no rows.

    Files in folders and those that match patterns are included.

    ``announce`` prints how many of these there are.
    """
    several = [path.is_dir() or (has_magic(os.fspath(path)) and not path.exists()) for path in paths]
    found = [
        file for path, many in zip(paths, several, strict=True) for file in (find_files([path]) if many else [path])
    ]
    return with_rows(found, form, say if announce else None)


def open_sources(
    paths: Sequence[Path], input_format: Format, options: ReadOptions, *, announce: bool = False
) -> list[Source]:
    """Open each of ``paths``; ``announce`` prints the inferred columns.

    Raises
    ------
    InputError
        There is no path, a path is repeated, or column names are given for a text format without columns; the
        pipeline's error if a path is no file.
    """
    from rankmill.pipeline.read.delimited import delimiter_lines
    from rankmill.pipeline.read.letor import check_made_ids
    from rankmill.pipeline.read.open_source import open_source, share_features

    if not paths:
        raise InputError("no candidates given; name at least one file")
    places: set[Path] = set()
    for path in paths:
        if (place := path.resolve()) in places:
            raise InputError(f"{path}: is given twice; name it once")
        places.add(place)
    sources = [open_source(path, input_format, options) for path in paths]
    share_features(sources)
    check_made_ids(sources)
    unnamed = next((source.path for source in sources if source.table is None), None)
    if options.columns and unnamed is not None:
        raise InputError(f"{spelled('columns')} is for tables; {unnamed} is LETOR text, which has no column names")
    without = next(
        (source.path for source in sources if options.goals and not (source.table and source.table.goals)), None
    )
    if without is not None:
        raise InputError(
            f"{without}: only tables have columns of goals, which the metrics name; give a table, or a dataset"
        )
    if announce and (guesses := guesses_of(source.table for source in sources)):
        say(guesses_line(guesses))
    for line in delimiter_lines(sources) if announce else ():
        say(line)
    return sources


def shared_options(options: Mapping[str, ReadOptions]) -> ReadOptions:
    """Return the read options that all models share; InputError if the models need different ones."""
    (first, shared), *others = options.items()
    for label, other in others:
        for each in fields(ReadOptions):
            mine, yours = getattr(shared, each.name), getattr(other, each.name)
            if each.name == "known_features":
                shared = replace(shared, known_features=mine | yours)
            elif each.name == "categorical":
                for name in sorted({*mine} ^ {*yours}):
                    if name in shared.known_features & other.known_features:
                        raise InputError(
                            f"the models {first} and {label} read the feature {name!r} in different ways: for one of "
                            "them it is categorical, for the other a number; rank with one model at a time"
                        )
                shared = replace(shared, categorical=tuple(sorted({*mine, *yours})))
            elif mine != yours:
                cure = {
                    "absent": f"choose with {spelled('absent')}",
                    "index_base": f"choose with {spelled('index_base')}",
                }
                raise InputError(
                    f"the models {first} and {label} were trained on data read in different ways ({each.name} "
                    f"{mine!r} and {yours!r}); {cure.get(each.name, 'rank with one model at a time')}"
                )
    return shared


def say(line: str) -> None:
    """Print ``line`` to stderr."""
    sys.stderr.write(f"{line}\n")


class DatasetSource:
    """A dataset, or one split of it, as a source of candidates; all columns but the features are held in memory."""

    def __init__(self, dataset: Dataset, split: str | None, predictor: Predictor, goals: Sequence[str] = ()) -> None:
        """Open the input of a model.

        CandidatesRejected if a feature is categorical in one of the two, and a number in the other.
        """
        categorical, features = dataset.manifest.categorical, predictor.feature_names
        where = f"{dataset.path}: "
        check_kinds(predictor.model, dataset.feature_names, categorical, CandidatesRejected, where=where)
        self.path = dataset.path
        self.position = 0
        lacking = set(features) - set(dataset.feature_names)
        self.columns: tuple[str, ...] | None = dataset.feature_names if lacking else features
        self.fields: tuple[str, ...] = ("grade",)
        self.table: TableColumns | None = None
        self._dataset, self._split, self._goals = dataset, split, goals
        self._size = dataset.path.stat().st_size  # total for the progress bar

    def names(self, width: int) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of the features; they are known beforehand."""
        return self.columns or ()

    def batches(self, block_bytes: int = 16 << 20) -> Iterator[RowBatch]:
        """Yield the rows in canonical order."""
        columns = self.columns or ()
        rows = self._dataset.rows(self._split, ("qid", "doc_id", "grade", *self._goals))
        batch_rows = min(max(1, block_bytes // (4 * max(1, len(columns)))), BATCH_ROWS)
        at = 0
        for values in self._dataset.feature_batches(self._split, list(columns), batch_rows):
            part: Any = rows.slice(at, len(values)).combine_chunks().to_batches()[0]
            at += len(values)
            self.position = self._size * at // rows.num_rows
            yield RowBatch(
                qid=part["qid"],
                doc_id=part["doc_id"],
                grade=part["grade"].to_numpy(),
                values=values,
                extras={name: part[name].to_numpy() for name in self._goals},
            )
