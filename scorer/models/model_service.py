"""Find models by name: a model file, or a version in a registry.

The only module of the scorer that uses the registry; every command that takes a model calls it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.scorer.models.identity import ModelIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankmill.foundation.storage.location import Location
    from rankmill.pipeline.group.sketch import QuerySketch
    from rankmill.registry import Version
    from rankmill.scorer.evaluate.compare import Ranking
    from rankmill.scorer.evaluate.train_test_overlap import TrainedModel
    from rankmill.scorer.models.model import Model

MODEL_SUFFIX = ".rankmill"
LIST_SUFFIXES = frozenset({".run", ".parquet", ".tsv", ".csv", ".txt"})
MOST_SEEDS = 20


def find_model(reference: str, registry: Location) -> tuple[Model, ModelIdentity]:
    """Read the model ``reference``.

    It is a model file if the path exists or has its suffix, else a version of the registry.

    The reference is resolved once; the identity holds the result.
    """
    from rankmill.scorer.models.loading import load_model_file

    if reference.endswith(MODEL_SUFFIX) or Path(reference).is_file():
        model = load_model_file(reference)
        return model, ModelIdentity(sha256=model.sha256)
    from rankmill.registry import Registry

    version = Registry(registry).resolve(reference, bare="production")
    return model_of(version), ModelIdentity(sha256=version.sha256, name=version.name, number=version.number)


def find_models(references: Sequence[str], registry: Location) -> dict[str, tuple[Model, ModelIdentity]]:
    """Read several models, by the names of their output folders: NAME@7, or the name of a file without its suffix.

    Raises
    ------
    InputError
        Two of them have the same name.
    """
    models: dict[str, tuple[Model, ModelIdentity]] = {}
    reference_of: dict[str, str] = {}
    for reference in references:
        model, identity = find_model(reference, registry)
        label = Path(reference).stem if identity.name is None else str(identity)
        if label in models:
            raise InputError(
                f"{spelled('model')} {reference_of[label]} and {spelled('model')} {reference} would both be {label!r} "
                "in OUT; leave one out, or rename the file"
            )
        models[label], reference_of[label] = (model, identity), reference
    return models


def find_ranking(subject: str, registry: Location, *, seeds: bool) -> Ranking:
    """Find a ranking for `compare`: a model file or a scored list if the path exists, else a version of the registry.

    ``seeds`` adds the versions that differ only in their seed.
    """
    from rankmill.scorer.evaluate.compare import Ranking
    from rankmill.scorer.models.loading import load_model_file
    from rankmill.scorer.models.model_file import is_model_file

    path = Path(subject)
    if subject.endswith(MODEL_SUFFIX) or (path.is_file() and is_model_file(path)):
        return Ranking(name=subject, source=load_model_file(path))
    if path.exists():
        return Ranking(name=subject, source=path)
    if looks_like_a_list(subject):
        raise InputError(f"{subject}: no such file")
    from rankmill.registry import Registry

    store = Registry(registry)
    version = store.resolve(subject, bare="production")
    others = other_seeds(version, store.versions(version.name)) if seeds else []
    return Ranking(
        name=str(version),
        source=model_of(version),
        seeds={str(other): model_of(other) for other in others},
        train_queries=train_queries(version),
    )


def looks_like_a_list(subject: str) -> bool:
    """Return whether ``subject``, which is no existing path, looks like a path rather than a model name."""
    return "/" in subject or Path(subject).suffix in LIST_SUFFIXES


def trained_model(model: Model, identity: ModelIdentity, registry: Location, reference: str) -> TrainedModel:
    """Return the training data that the model records and, for a version of the registry, its query sketch.

    ``reference`` is the name of a model file in messages.
    """
    from rankmill.scorer.evaluate.train_test_overlap import TrainedModel

    name = reference if identity.name is None else str(identity)
    return TrainedModel.of(model, name, queries_trained_on(identity, registry))


def queries_trained_on(identity: ModelIdentity, registry: Location) -> QuerySketch | None:
    """Return the sketch of the queries that a registered model was trained on; None if there is none."""
    if identity.name is None:
        return None
    from rankmill.registry import Registry

    return train_queries(Registry(registry).resolve(str(identity), bare="latest"))


def train_queries(version: Version) -> QuerySketch | None:
    """Return the sketch of the queries that a version was trained on; None if there is none."""
    from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch

    data = version.attachment(TRAIN_QUERIES)
    return None if data is None else QuerySketch.from_bytes(data, f"{version}, {TRAIN_QUERIES}")


def other_seeds(version: Version, versions: Sequence[Version]) -> list[Version]:
    """Return the versions that differ from this one only in the seed.

    It has the newest for each seed, at most ``MOST_SEEDS``.
    """
    recipe, seed = recipe_and_seed(version)
    if recipe is None:
        return []
    newest: dict[Any, Version] = {}
    for other in versions:
        if other.sha256 != version.sha256 and other.swept_in is None:
            same, other_seed = recipe_and_seed(other)
            if same == recipe and other_seed != seed:
                newest[other_seed] = other
    return sorted(newest.values(), key=lambda other: other.number)[-MOST_SEEDS:]


def recipe_and_seed(version: Version) -> tuple[tuple[Any, ...] | None, Any]:
    """Return the recipe of the version (data, code and parameters but the seed) and its seed; None if not recorded."""
    facts = version.manifest
    parameters = facts.get("parameters")
    if not isinstance(parameters, dict) or "seed" not in parameters or facts.get("dataset_digest") is None:
        return None, None
    rest = {name: value for name, value in parameters.items() if name != "seed"}
    seeds = facts.get("seeds")
    averaged = isinstance(seeds, dict) and seeds.get("choose") == "average" and len(seeds.get("trained") or ())
    recipe = (
        facts["dataset_digest"],
        rest,
        facts.get("code_digest"),
        facts.get("base_model"),
        averaged,
    )
    return recipe, parameters["seed"]


def model_of(version: Version) -> Model:
    """Read the model of ``version``; ModelFormatError if it is damaged."""
    from rankmill.scorer.models.loading import read_model

    return read_model(version.read(), str(version))
