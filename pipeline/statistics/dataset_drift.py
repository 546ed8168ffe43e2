"""Drift between two datasets: every feature on the bins of the older one, and the grades."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.foundation.terminal import plain_table, printed
from rankmill.pipeline.bins.quantiles import Values
from rankmill.pipeline.bins.write import columns_of
from rankmill.pipeline.statistics.drift_reference import DriftReference, grades_of
from rankmill.pipeline.statistics.psi import FeatureSample, Index, Starts, cells_for

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.dataset.manifest import SplitName


T = TypeVar("T")
Note = Callable[[str, Values], None]
"""Gets the name and the values of a feature."""

LARGE = 0.1  # the usual rule for the PSI: below 0.1 no notable change, above 0.25 a large one
FALSE_ALARMS = 0.001  # probability of a false alarm among all features and the grades
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ColumnDrift:
    """The drift of one feature or of the grades."""

    name: str
    psi: float
    expected: float
    """The mean PSI if nothing has changed."""
    threshold: float
    """The PSI above which there is an alarm."""
    cells: int
    effective_rows: tuple[float, float]
    """Effective number of independent rows in the old and in the new dataset."""
    missing: tuple[float, float]
    """Share of missing values in the old and in the new dataset."""
    beyond: float
    """Share of new values outside the range of the old ones; of a categorical feature, of new categories."""

    @property
    def alarm(self) -> bool:
        """Whether the PSI is above the threshold."""
        return self.psi > self.threshold


@dataclass(frozen=True, slots=True)
class DriftComparison:
    """The result of `compare`."""

    digest: str
    against: str
    split: str | None
    """The split whose rows were compared; None: all rows."""
    rows: tuple[int, int]
    queries: tuple[int, int]
    grades: ColumnDrift
    features: tuple[ColumnDrift, ...]
    came: tuple[str, ...]
    """Features that the old dataset does not have."""
    went: tuple[str, ...]
    """Features that only the old dataset has."""

    @property
    def alarms(self) -> tuple[str, ...]:
        """Names of drifted, new and missing features."""
        return (*(drift.name for drift in (self.grades, *self.features) if drift.alarm), *self.came, *self.went)

    def to_json(self) -> str:
        """Return one JSON object."""
        content = as_json(self)
        for drift, fields in zip((self.grades, *self.features), (content["grades"], *content["features"]), strict=True):
            fields["alarm"] = drift.alarm
        return json.dumps({**content, "alarms": self.alarms}, ensure_ascii=False, allow_nan=False)

    def render(self, width: int = 120) -> str:
        """Return the comparison as text, the largest drift first."""
        of = "all rows" if self.split is None else f"the {self.split} split"
        documents, queries = (f"{old:,} before, {new:,} now" for old, new in (self.rows, self.queries))
        head = [f"{of}: documents {documents}; queries {queries}"]
        for names, what in ((self.came, "are new"), (self.went, "are gone")):
            if names:
                head.append(f"{len(names):,} features {what}: {', '.join(names[:_MOST_SHOWN])}")
        order = sorted(self.features, key=lambda drift: drift.psi / drift.threshold, reverse=True)
        moved = sum(drift.alarm for drift in order)
        shown = order[: max(moved, _MOST_SHOWN)]
        rows = []
        for drift in (self.grades, *shown):
            shares = (f"{share:.1%}" for share in (*drift.missing, drift.beyond))
            numbers = (f"{number:.4f}" for number in (drift.psi, drift.expected, drift.threshold))
            rows.append((drift.name, *numbers, *shares, "drift" if drift.alarm else ""))
        headings = ("PSI", "by chance", "alarm above", "missing before", "now", "out of range")
        table = plain_table("feature", headings, rows, last="")
        lines = filter(None, printed(table, width=width))
        tail = (
            [f"{len(order) - len(shown):,} features that moved less are not shown"] if len(shown) < len(order) else []
        )
        found = f"{moved:,} of {len(order):,} features moved{', and so did the grades' * self.grades.alarm}"
        return "\n".join([*head, *lines, *tail, found])


def compare(dataset: Dataset, old: Dataset) -> DriftComparison:
    """Compare the train split of ``dataset`` with that of ``old``, or all rows of both if one has no train split.

    The newest bins of ``old`` (without bins: exact quantiles of the rows compared) are joined into 20 cells of about
    equal mass (fewer for less than 200 queries).  Heavy values, missing values, and values below and above the range of
    ``old`` have their own cells.  The cells of a categorical feature are its most frequent categories, all others, new
    ones, and missing.  `rankmill.pipeline.statistics.psi` defines the index and its distribution by chance.  An alarm
    is an index above 0.1 that chance exceeds once in a thousand comparisons of this many features.

    Raises
    ------
    InputError
        The datasets have no feature in common.
    """
    names = _common(dataset, old.feature_names, str(old.path))
    split: SplitName | None = "train"
    if any("train" not in some.manifest.splits for some in (dataset, old)):
        split = None
    most = cells_for(len(old.queries(split).starts) - 1, len(dataset.queries(split).starts) - 1)
    reference = DriftReference.of(old, split, most=most, features=names)
    went = tuple(name for name in old.feature_names if name not in set(names))
    return replace(compare_with(dataset, reference), went=went)


def compare_with(dataset: Dataset, reference: DriftReference) -> DriftComparison:
    """Compare ``dataset`` with the drift reference of an old one, as `compare` does.

    The result equals that of `compare` for at least 200 queries, or as many as the old dataset had.  For fewer queries,
    the stored cells are joined, while `compare` would compute new ones.

    Raises
    ------
    InputError
        There is no feature in common, or ``dataset`` does not have the split of the reference.
    """

    def read(names: Sequence[str], note: Note) -> None:
        for name, values in columns_of(dataset, reference.split, features=names):
            note(name, values)

    return _compared(dataset, reference, "the former dataset", read)[0]


def compare_and_keep(dataset: Dataset, reference: DriftReference) -> tuple[DriftComparison, DriftReference]:
    """Return the result of `compare_with` the previous dataset, and the drift reference of ``dataset``.

    The dataset is read once.
    """

    def read(_: Sequence[str], note: Note) -> DriftReference:
        return DriftReference.of(dataset, reference.split, note=note)

    return _compared(dataset, reference, "the previous dataset", read)


def _compared(
    dataset: Dataset, former: DriftReference, where: str, read: Callable[[Sequence[str], Note], T]
) -> tuple[DriftComparison, T]:
    """Return the comparison, and the result of ``read``.

    ``read`` calls ``Note`` with the values of each of the given features, or of all.
    """
    split = former.split
    if split is not None and split not in dataset.manifest.splits:
        raise InputError(f"{dataset.path}: has no {split} split, but {where} describes that split")
    names = _common(dataset, former.feature_names, where)
    starts = dataset.queries(split).starts
    most = cells_for(former.queries, len(starts) - 1)
    tail = FALSE_ALARMS / (len(names) + 1)
    wanted = {sample.name: sample.joined(most) for sample in former.features if sample.name in set(names)}
    found: dict[str, ColumnDrift] = {}

    def note(name: str, values: Values) -> None:
        if name in wanted:
            found[name] = drift_from(wanted[name], values, starts, tail)

    result = read(names, note)
    comparison = DriftComparison(
        digest=dataset.digest,
        against=former.digest,
        split=split,
        rows=(former.rows, int(starts[-1])),
        queries=(former.queries, len(starts) - 1),
        grades=drift_from(former.grades.joined(most), grades_of(dataset, split), starts, tail),
        features=tuple(found[name] for name in names),
        came=tuple(name for name in dataset.feature_names if name not in wanted),
        went=tuple(name for name in former.feature_names if name not in wanted),
    )
    return comparison, result


def drift_from(former: FeatureSample, now: Values, starts: Starts, tail: float) -> ColumnDrift:
    """Compare the values ``now`` (m,), whose queries begin at ``starts`` (q + 1,), with the old ones in their cells."""
    sums = (former.sums, former.placed(now, starts))
    index = Index.of(*sums)
    counts = [each.counts for each in sums]
    first, second = (int(c[0]) / max(1, int(c.sum())) for c in counts)
    return ColumnDrift(
        name=former.name,
        psi=index.psi,
        expected=index.expected,
        threshold=max(LARGE, index.quantile(tail)),
        cells=len(counts[0]),
        effective_rows=index.effective,
        missing=(first, second),
        beyond=former.beyond(sums[1]) / max(1, int(counts[1].sum())),
    )


def _common(dataset: Dataset, names: Sequence[str], where: str) -> list[str]:
    known = set(dataset.feature_names)
    common = [name for name in names if name in known]
    if not common:
        raise InputError(f"{dataset.path} and {where}: the two datasets have no feature in common")
    return common
