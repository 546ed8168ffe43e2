"""Choose the queries of a dataset to score by default, and report which of them the models saw in training.

A model is trained on the train split of a dataset, whose digest is in the model.  Its scores on these queries say
little about new ones.  On that dataset, the default is therefore a held-out split, and the report says which queries
were seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON, not_in_json
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME, SPLITS
from rankmill.pipeline.group.sketch import Overlap, QuerySketch, overlap
from rankmill.scorer.models.loading import Blend, parts_of
from rankmill.scorer.models.model import DATASETS_OF_BASE, Model
from rankmill.scorer.nets.net import Net
from rankmill.scorer.rerank.ranked_file import is_ranked_folder

ALL = "all"  # queries of all splits; and, of a refit, rows of the train and valid splits
TRAIN, VALID, REFIT = "train", "valid", "refit"
OF_BLENDS = "trained_on"  # in the info of a blend: splits that the blends in it were trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """What is known of the data that a model was trained on.

    Attributes
    ----------
    name
        Its name in messages.
    datasets
        Digests of the datasets; none: not recorded.
    chose_rounds
        Whether the valid split of its dataset decided how many trees it has, or ``chosen``.
    chosen
        What the valid split decided, in words; ``it`` is the model.
    splits
        The splits of its dataset that it was trained on.
    queries
        The queries that it was trained on, if a registry has them.
    """

    name: str
    datasets: frozenset[str]
    chose_rounds: bool = False
    chosen: str = "how many trees it has"
    splits: tuple[str, ...] = (TRAIN,)
    queries: QuerySketch | None = None

    @classmethod
    def of(cls, model: Model, name: str = "the model", queries: QuerySketch | None = None) -> TrainedModel:
        """Read what the model records."""
        splits = splits_trained_on(model)
        return cls(
            name=name,
            datasets=frozenset(digest for part in parts_of(model) for digest in _datasets_of(part)),
            chose_rounds=VALID not in splits and _stopped_by_valid(model),
            chosen=_chosen_by_valid(model),
            splits=splits,
            queries=queries,
        )

    def learnt_from(self, dataset: Dataset) -> bool:
        """Whether it was trained on the train split of ``dataset``, to which pairs may have been added since."""
        return not self.datasets.isdisjoint({dataset.digest, dataset.manifest.rows_digest()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The queries of a dataset that are scored.

    Attributes
    ----------
    splits
        The splits of these queries.
    seen_in_training
        By model: the splits among these that it was trained on.
    chose_rounds
        By model: the splits among these that decided how many trees it has, or what ``chosen`` says of it.
    seen_by_id
        By model trained on another dataset: how many of these queries have the ids of queries that it was trained on.
    training_data_unknown
        Models without a record of their training data.
    remarks
        The same in words; at least one remark.
    split
        The split to read; None: the whole dataset.
    """

    splits: tuple[str, ...] = ()
    seen_in_training: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    chose_rounds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seen_by_id: Mapping[str, Overlap] = field(default_factory=dict)
    training_data_unknown: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(init=False)
    split: str | None = not_in_json(default=None)
    chosen: Mapping[str, str] = not_in_json(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "remarks", tuple(self._remarks()))

    def words(self) -> str:
        """Return one line for people: the splits, and `remarks`."""
        return "; ".join([", ".join(self.splits) or "candidates", *self.remarks])

    def _remarks(self) -> list[str]:
        seen, unknown = self.seen_in_training, self.training_data_unknown
        parts = [f"{name} was trained on {_and(splits)}: SEEN IN TRAINING" for name, splits in seen.items()]
        parts += [
            f"{name} was trained on {'' if known.exact else 'about '}{round(known.estimate):,} queries with the ids of "
            f"these {known.queries:,}: SEEN IN TRAINING"
            for name, known in self.seen_by_id.items()
        ]
        if not parts and not unknown:
            parts.append("not seen in training")
        parts += [
            f"{_and(splits)} decided {self.chosen[name].replace(' it ', f' {name} ')}"
            for name, splits in self.chose_rounds.items()
        ]
        return parts + [f"{name} does not say what it was trained on" for name in unknown]


def splits_trained_on(model: Model) -> tuple[str, ...]:
    """Return the splits of its dataset that a model, or a part of a blend, was trained on."""
    if isinstance(model, Blend):
        found = {split for part in model.parts for split in splits_trained_on(part)}
        found |= {str(model.parameters.get("split", VALID))} - {VALID}  # valid decides, as for rounds
        found |= {VALID} if REFIT in model.info else set()
        known = model.info.get(OF_BLENDS)
        found |= {str(split) for split in known} if isinstance(known, list) else set()
        return tuple(split for split in SPLITS if split in found)
    return (TRAIN, VALID) if REFIT in model.info or model.parameters.get(REFIT, "none") != "none" else (TRAIN,)


def splits_of_blends(models: Sequence[Model]) -> dict[str, JSON]:
    """Return what a blend of ``models`` records of those that are blends, as it holds only their parts."""
    found = {split for model in models if isinstance(model, Blend) for split in splits_trained_on(model)}
    return {OF_BLENDS: [split for split in SPLITS if split in found]} if found else {}


def _datasets_of(model: Model) -> list[str]:
    """Return the digests of what the model and its base models were trained on."""
    info, below = model.info, model.info.get(DATASETS_OF_BASE)
    own = (info.get("dataset_digest"), info.get("rows_digest"), *(below if isinstance(below, list) else ()))
    return [str(digest) for digest in own if digest]


def _chosen_by_valid(model: Model) -> str:
    if isinstance(model, Blend):
        return "what it is made of"
    return "at which epoch it was kept" if isinstance(model, Net) else "how many trees it has"


def _stopped_by_valid(model: Model) -> bool:
    if isinstance(model, Blend):
        return model.parameters.get("split") == VALID or any(map(_stopped_by_valid, model.parts))
    parameters = model.parameters
    if isinstance(model, Net):
        return bool(parameters.get("early_stopping_epochs", 0))
    best = bool(parameters.get("early_stopping_rounds", 0)) or parameters.get("keep_rounds", "best") == "best"
    return parameters.get("rounds_by", VALID) == VALID and best


def chosen_queries(
    paths: Sequence[Path], split: str | None, models: Sequence[TrainedModel], qids: Sequence[str] = ()
) -> tuple[Dataset | None, Scope | None]:
    """Open the dataset that ``paths`` name and choose which of its queries are scored.

    (None, None) for files of candidates.

    Raises
    ------
    InputError, CandidatesRejected
        As `scope_of`; or ``split`` is given for files.
    """
    if (split is not None and len(paths) == 1 and paths[0].is_dir()) or names_dataset(paths):
        dataset = Dataset.open(paths[0])
        return dataset, scope_of(dataset, split, models, qids)
    if split is not None:
        raise InputError(
            f"{spelled('split')} chooses a part of a dataset; {', '.join(map(str, paths))} is not a dataset"
        )
    return None, None


def names_dataset(paths: Sequence[Path]) -> bool:
    """Whether ``paths`` are the folder of one dataset; another folder stands for the files of candidates in it."""
    return len(paths) == 1 and (paths[0] / MANIFEST_NAME).is_file() and not is_ranked_folder(paths[0])


def scope_of(dataset: Dataset, asked: str | None, models: Sequence[TrainedModel], qids: Sequence[str] = ()) -> Scope:
    """Choose which queries of ``dataset`` to score.

    Parameters
    ----------
    dataset
        The data.
    asked
        ``train``, ``valid``, ``test`` or ``all``; None: what no model has seen, ``test`` before ``valid``, or the whole
        dataset if no model was trained on it.  A model that does not say what it was trained on may have seen the train
        split.
    models
        The models that score.
    qids
        Ids of queries to score: then None is the whole dataset.

    Raises
    ------
    InputError
        There is no such split, or ``asked`` is None and all queries were trained on.
    CandidatesRejected
        The split is empty.
    """
    counts = {str(name): count.queries for name, count in dataset.manifest.splits.items()}
    filled: tuple[str, ...] = tuple(name for name in SPLITS if counts.get(name))
    if asked not in {None, ALL, *SPLITS}:
        raise InputError.unknown("split", str(asked), (*SPLITS, ALL))
    if asked in SPLITS and asked not in filled:
        raise CandidatesRejected(empty_split(dataset, str(asked)))
    by_id = {
        model: {name: overlap(model.queries, dataset.queries(name).qid) for name in filled}
        for model in models
        if model.queries is not None
    }
    learnt = {  # the splits that a model records, and those whose queries its base model was trained on
        model: tuple(name for name in filled if name in model.splits or (model in by_id and by_id[model][name].found))
        for model in models
        if model.learnt_from(dataset)
    }
    by_id = {model: found for model, found in by_id.items() if model not in learnt}
    unknown = tuple(model.name for model in models if not model.datasets and model.queries is None)
    split = None if asked == ALL else asked
    if asked is None and not qids:
        split = _unseen_split(dataset, filled, learnt, by_id, [model.name for model in models], unknown)
    scored = filled if split is None else (split,)
    if qids and split is None:
        named = set(qids)
        scored = tuple(name for name in filled if not named.isdisjoint(dataset.queries(name).qid.to_pylist()))
    return Scope(
        split=split,
        splits=scored,
        seen_in_training={
            model.name: seen
            for model, splits in learnt.items()
            if (seen := tuple(name for name in splits if name in scored))
        },
        chose_rounds={
            model.name: (VALID,)
            for model, splits in learnt.items()
            if model.chose_rounds and VALID in scored and VALID not in splits
        },
        chosen={model.name: model.chosen for model in learnt},
        seen_by_id={
            model.name: found
            for model, of_split in by_id.items()
            if (found := _sum_overlaps([of_split[name] for name in scored])).found
        },
        training_data_unknown=unknown,
    )


def scope_of_candidates(models: Sequence[TrainedModel], qids: Sequence[str]) -> Scope | None:
    """Report which models were trained on queries with these ids, as far as a registry knows; None if none was."""
    overlaps = {model.name: overlap(model.queries, qids) for model in models if model.queries is not None}
    overlaps = {name: of_model for name, of_model in overlaps.items() if of_model.found}
    return Scope(seen_by_id=overlaps) if overlaps else None


def _unseen_split(
    dataset: Dataset,
    filled: Sequence[str],
    learnt: Mapping[TrainedModel, Sequence[str]],
    by_id: Mapping[TrainedModel, Mapping[str, Overlap]],
    names: Sequence[str],
    unknown: Sequence[str],
) -> str | None:
    """Return the split that no model has seen; None if none was trained on ``dataset``.

    ``learnt`` has the splits among those ``filled`` that a model was trained on, by its digest.  ``by_id`` has the
    query ids that another model has seen.  ``names`` are those of all models, ``unknown`` of those without a record of
    their training data.
    """
    also = {
        name for model, splits in learnt.items() for name in (splits if len(splits) < len(filled) else model.splits)
    }
    for found in by_id.values():
        seen = {name for name, of_split in found.items() if of_split.found}
        # if a model has seen ids of every split, they may be equal by chance, and no split is better than another
        also |= seen if len(seen) < len(found) else set()
    held_out = [name for name in dataset.manifest.unseen if name not in also]
    if not (learnt or also or (unknown and held_out)):
        return None
    if not held_out:
        raise InputError(
            f"{dataset.path}: no split has queries that {_and(names)} has not seen in training; "
            f"name another dataset, or use these queries anyway with {spelled('split')} {ALL}"
        )
    return held_out[0]


def _sum_overlaps(parts: Sequence[Overlap]) -> Overlap:
    found, looked_at, queries = (
        sum(getattr(part, name) for part in parts) for name in ("found", "looked_at", "queries")
    )
    return Overlap(found=found, looked_at=looked_at, queries=queries)


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)


def empty_split(dataset: Dataset, split: str, usable: Sequence[str] = SPLITS) -> str:
    """Return that ``split`` has no rows, and which splits have some.

    It also says how to make one or choose another of those ``usable``.
    """
    filled = [name for name, count in dataset.manifest.splits.items() if count.rows]
    other = next((name for name in filled if name in usable), None)
    cure = "to make one, ingest again with --split train=0.6,valid=0.2,test=0.2"
    cure += f"; to use {other} anyway: {spelled('split')} {other}" if other else ""
    return f"{dataset.path}: the split {split!r} is empty; splits with rows: {', '.join(filled) or 'none'}; {cure}"
