"""What a dataset was told about its input holds for what is added to it: the manifest gives it, and nothing else may."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError
from rankmill.pipeline.group.splits import split_time_of
from rankmill.pipeline.sources.grades import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from rankmill.pipeline.ingest.options import IngestOptions
    from rankmill.pipeline.manifest import Manifest
    from rankmill.pipeline.sources.batch import ReadOptions

OPTIONS_OF_READING = (
    "absent",
    "index_base",
    "labels",
    "n_features",
    "max_grade",
    "grades",
    "negative_grades",
    "unjudged",
    "time_column",
)
OPTIONS_OF_DATASET = ("shares", "split_time", "folds", "buckets")
OPTIONS = {name: name for name in (*OPTIONS_OF_READING, *OPTIONS_OF_DATASET)} | {"shares": "split"}
"""All of them, with what the command calls them."""


def recorded_options(manifest: Manifest) -> dict[str, Any]:
    """Return the options of :data:`OPTIONS_OF_READING` and :data:`OPTIONS_OF_DATASET` that made the dataset."""
    meaning = manifest.meaning
    bounds = meaning.split_time
    highest = max((count.grade for count in manifest.grades), default=0)
    return {
        "absent": meaning.absent,
        "index_base": meaning.index_base,
        "labels": meaning.labels,
        "n_features": meaning.n_features,
        # manifests of before it was recorded tell by a highest grade that no row has
        "max_grade": manifest.max_grade if manifest.max_grade > highest else meaning.max_grade,
        "grades": words_of(meaning.grades.items()),
        "negative_grades": meaning.negative_grades,
        "unjudged": meaning.no_grade,
        "time_column": meaning.time_column,
        "shares": meaning.split,
        "split_time": None if bounds is None else split_time_of(bounds.get("valid"), bounds.get("test")),
        "folds": meaning.folds,
        "buckets": manifest.buckets,
    }


def options_for(path: Path, manifest: Manifest, options: IngestOptions, given: Collection[str] = ()) -> IngestOptions:
    """Return ``options`` with everything that is a matter of the dataset at ``path`` as it was made.

    Parameters
    ----------
    path, manifest
        The dataset.
    options
        What the caller wants.  What has its default counts as not said, unless its name is in ``given``.

    Raises
    ------
    InputError
        An option differs from what the dataset was made with.
    """
    recorded = recorded_options(manifest)
    wanted = _values(options)
    default = _values(type(options)())
    for name, value in wanted.items():
        if value != recorded[name] and (value != default[name] or name in given):
            option = f"--{OPTIONS[name].replace('_', '-')}"
            raise InputError(
                f"{path}: was made {_said(option, recorded[name])}, and --append adds to it as it was made; leave {option} out, "
                "or make the dataset anew from all files"
            )
    read: ReadOptions = replace(options.read, **{name: recorded[name] for name in OPTIONS_OF_READING})
    return replace(options, read=read, **{name: recorded[name] for name in OPTIONS_OF_DATASET})


def _values(options: IngestOptions) -> Mapping[str, Any]:
    return {
        **{name: getattr(options.read, name) for name in OPTIONS_OF_READING},
        **{name: getattr(options, name) for name in OPTIONS_OF_DATASET},
    }


def _said(option: str, value: Any) -> str:
    """Say how ``option`` was given."""
    if value is None or value == ():
        return f"without {option}"
    if isinstance(value, (str, int)):
        return f"with {option} {value}"
    return f"with another {option}"
