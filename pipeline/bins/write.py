"""The work of binning: compute the bins of some features from the train split, and write those of all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rankmill.pipeline.bins.layout import SplitFiles, joined, lanes_of
from rankmill.pipeline.bins.quantiles import EDGE, Values
from rankmill.pipeline.bins.sampled_bins import atoms_of, sampled_edges, sampled_places
from rankmill.pipeline.bins.spec import BinSpec, FeatureBins, apply_bins, category_bins, feature_bins
from rankmill.pipeline.bins.vocabulary import EMPTY, summed, tally_of
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.pipeline.options import MAX_BIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from rankmill.pipeline.bins.layout import OfSplits
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.dataset.manifest import Shard, SplitName
    from rankmill.pipeline.memory_plans import BinPlan

    Places = npt.NDArray[np.int64]
    Counts = npt.NDArray[np.int64]

_COLUMN_BYTES = 64 << 20  # of columns processed together by default
_BATCH_ROWS = 65536  # rows read at a time


def bins_of_dataset(dataset: Dataset, plan: BinPlan, most: Mapping[str, int]) -> tuple[FeatureBins, ...]:
    """Return the bins of all features, ``most`` at a time; without counts if they are from a sample."""
    return tuple(bins_of_features(dataset, dataset.feature_names, most, plan, places_of(dataset, plan)))


def write_bins(dataset: Dataset, plan: BinPlan, spec: BinSpec, files: SplitFiles) -> Counts:
    """Write the bins of all rows to ``files``.

    If ``spec`` is from a sample, return the rows of the train split in each bin (F, 256).
    """
    counts = no_counts(spec)
    for shard in dataset.manifest.shards:
        files.add(codes_of(dataset, shard, spec, plan.batch_rows, counts))
    return counts


def no_counts(spec: BinSpec) -> Counts:
    """Return counts to add to, (F, 256); none if ``spec`` is not from a sample, and so has its own."""
    return np.zeros((0 if spec.sampled_rows is None else len(spec.features), MAX_BIN + 1), dtype=np.int64)


def places_of(dataset: Dataset, plan: BinPlan) -> Places | None:
    """Return the rows of the train split that the edges are from; None: all."""
    if plan.sampled_rows is None:
        return None
    return sampled_places(lambda: dataset.query_batches("train"), plan.sampled_rows)


def bins_of_features(
    dataset: Dataset, names: Sequence[str], most: Mapping[str, int], plan: BinPlan, places: Places | None
) -> Iterator[FeatureBins]:
    """Yield the bins of the features ``names``, at most ``most`` at a time.

    They come from the rows ``places`` of the train split.
    """
    if places is None:
        return _exact_features(dataset, names, most, plan)
    return _sampled_features(dataset, names, most, plan, places)


def columns_of(
    dataset: Dataset,
    split: SplitName | None = None,
    together: int | None = None,
    features: Sequence[str] | None = None,
) -> Iterator[tuple[str, Values]]:
    """Yield every feature of ``split`` (or only ``features``) with its values (n,) in canonical order.

    The caller may modify the values.

    ``together`` columns are in memory at a time (None: a few), and later ones overwrite the values.
    """
    rows = dataset.manifest.rows if split is None else dataset.manifest.splits[split].rows
    together = together or max(1, _COLUMN_BYTES // (4 * max(1, rows)))
    features = dataset.feature_names if features is None else features
    columns = np.empty((min(together, len(features)), rows), dtype=EDGE)
    for names in _groups(features, together):
        first = 0
        for batch in dataset.column_batches(split, names, _BATCH_ROWS):
            for column, values in zip(columns, batch, strict=False):
                column[first : first + len(values)] = values
            first += len(batch[0])
        yield from zip(names, columns, strict=False)


def _groups(names: Sequence[str], together: int) -> Iterator[Sequence[str]]:
    return (names[first : first + together] for first in range(0, len(names), together))


def _exact_features(
    dataset: Dataset, names: Sequence[str], most: Mapping[str, int], plan: BinPlan
) -> Iterator[FeatureBins]:
    categorical = frozenset(dataset.manifest.categorical)
    for name, values in columns_of(dataset, "train", together=plan.columns, features=names):
        bins = feature_bins(name, values, most[name], in_place=True, categorical=name in categorical)
        yield _with_names(bins, dataset)


def _with_names(bins: FeatureBins, dataset: Dataset) -> FeatureBins:
    return replace(bins, names=dataset.vocabulary.named(bins.name, bins.edges)) if bins.categorical else bins


def _sampled_features(
    dataset: Dataset, features: Sequence[str], most: Mapping[str, int], plan: BinPlan, places: Places
) -> Iterator[FeatureBins]:
    """Yield the bins from a sample, without counts.

    Categories are few enough to be counted exactly: those of a feature are the same as without a sample.
    """
    categorical = frozenset(dataset.manifest.categorical)
    for names in _groups(features, plan.columns):
        tallies = {place: tally_of(EMPTY) for place, name in enumerate(names) if name in categorical}
        samples = np.empty((len(names), len(places)), dtype=EDGE)
        first = drawn = 0

        def note(batch: Sequence[Values]) -> None:
            nonlocal first, drawn
            last = drawn + int(np.searchsorted(places[drawn:], first + len(batch[0])))
            for sample, values in zip(samples, batch, strict=True):  # noqa: B023  called at once, as below
                sample[drawn:last] = values[places[drawn:last] - first]
            for place, tally in tallies.items():  # noqa: B023
                tallies[place] = summed([tally, tally_of(batch[place])])  # noqa: B023
            first, drawn = first + len(batch[0]), last

        found = atoms_of(lambda: dataset.column_batches("train", names, _BATCH_ROWS), len(names), note)  # noqa: B023
        for place, (name, atoms, sample) in enumerate(zip(names, found, samples, strict=True)):
            if place in tallies:
                bins = category_bins(name, *tallies[place], atoms.missing, most[name])
                yield _with_names(replace(bins, counts=np.zeros(bins.n_bins, dtype=np.int64)), dataset)
                continue
            edges = sampled_edges(sample, atoms, most[name])
            yield FeatureBins(name, edges, np.zeros(len(edges) + 2, dtype=np.int64), *atoms.extremes)


def codes_of(dataset: Dataset, shard: Shard, spec: BinSpec, batch_rows: int, counts: Counts) -> OfSplits:
    """Yield the lanes of the rows of ``shard``, some of a split at a time; see `rankmill.pipeline.bins.layout`.

    Add the rows of the train split to ``counts`` (F, 256) if ``spec`` is from a sample.
    """
    lanes, (split_of, sizes) = lanes_of(spec.n_bins), dataset.query_sizes[shard.bucket]
    split_of_row = np.repeat(split_of, sizes)
    done = 0
    for values in dataset.shard_batches(shard, batch_rows):
        bins = apply_bins(values, spec)
        split = split_of_row[done : done + len(bins)]
        if spec.sampled_rows is not None:
            for f, column in enumerate(bins[split == SPLITS.index("train")].T):
                counts[f] += np.bincount(column, minlength=MAX_BIN + 1)
        codes = joined(bins, lanes)
        for number in np.unique(split).tolist():
            yield SPLITS[number], codes[split == number]
        done += len(bins)
