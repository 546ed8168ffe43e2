"""A dataset against a former one: every feature on the bins of the former one, and the grades."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.binning import columns_of
from pipeline.binspec import FeatureBins, feature_bins
from pipeline.drift import _kernels
from pipeline.drift.psi import Cells, Index
from pipeline.errors import InputError
from pipeline.quantiles import EDGE, Values, bin_ends

if TYPE_CHECKING:
    from pipeline.dataset import Dataset
    from pipeline.manifest import SplitName

LARGE = 0.1  # the custom of those who watch scorecards: below 0.1 no change to speak of, above 0.25 a large one
FALSE_ALARMS = 0.001  # how often chance alone may raise one among all features and the grades
VALUE_CELLS = 20  # more are noise: the index of chance grows with their number
_QUERIES_A_CELL = 10  # fewer, and a chi-square no longer says what chance does
_OTHERS = 3  # missing, below and above all that there was
_BELOW, _ABOVE = "below", "above"
_MOST_SHOWN = 20
GRADES = "grades"


@dataclass(frozen=True, slots=True)
class Drift:
    """How far one feature, or the grades, moved."""

    name: str
    psi: float
    expected: float
    """The mean of the index if nothing has changed."""
    threshold: float
    """What it must exceed for an alarm."""
    cells: int
    effective_rows: tuple[float, float]
    """Independent rows that the rows of the former and of the new dataset are worth."""
    missing: tuple[float, float]
    """Share of missing values in the former and in the new dataset."""
    beyond: float
    """Share of the new values below the least or above the greatest former one."""

    @property
    def alarm(self) -> bool:
        """Whether it moved further than custom and chance allow."""
        return self.psi > self.threshold


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found."""

    digest: str
    against: str
    split: str | None
    """The split whose rows were compared; None: all rows."""
    rows: tuple[int, int]
    queries: tuple[int, int]
    grades: Drift
    features: tuple[Drift, ...]
    came: tuple[str, ...]
    """Features that the former dataset does not have."""
    went: tuple[str, ...]
    """Features that only the former one has."""

    @property
    def alarms(self) -> tuple[str, ...]:
        """What moved, came and went, by name."""
        return (*(drift.name for drift in (self.grades, *self.features) if drift.alarm), *self.came, *self.went)

    def to_json(self) -> str:
        """Return one JSON object."""
        content = asdict(self)
        for drift, told in zip((self.grades, *self.features), (content["grades"], *content["features"]), strict=True):
            told["alarm"] = drift.alarm
        return json.dumps({**content, "alarms": self.alarms}, ensure_ascii=False, allow_nan=False)

    def render(self, width: int = 120) -> str:
        """Return it for a person, the largest changes first."""
        from rich import box
        from rich.console import Console
        from rich.table import Table

        of = "all rows" if self.split is None else f"the {self.split} split"
        rows, queries = (f"{old:,} before, {new:,} now" for old, new in (self.rows, self.queries))
        head = [f"{of}: documents {rows}; queries {queries}"]
        for names, what in ((self.came, "are new"), (self.went, "are gone")):
            if names:
                head.append(f"{len(names):,} features {what}: {', '.join(names[:_MOST_SHOWN])}")
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("feature", overflow="fold")
        for heading in ("PSI", "by chance", "alarm above", "missing before", "now", "out of range"):
            table.add_column(heading, justify="right")
        table.add_column("")
        order = sorted(self.features, key=lambda drift: drift.psi / drift.threshold, reverse=True)
        moved = sum(drift.alarm for drift in order)
        shown = order[: max(moved, _MOST_SHOWN)]
        for drift in (self.grades, *shown):
            shares = (f"{share:.1%}" for share in (*drift.missing, drift.beyond))
            numbers = (f"{number:.4f}" for number in (drift.psi, drift.expected, drift.threshold))
            table.add_row(drift.name, *numbers, *shares, "drift" if drift.alarm else "")
        out = io.StringIO()
        console = Console(file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False)
        console.print(table)
        lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
        tail = (
            [f"{len(order) - len(shown):,} features that moved less are not shown"] if len(shown) < len(order) else []
        )
        found = f"{moved:,} of {len(order):,} features moved{', and so did the grades' * self.grades.alarm}"
        return "\n".join([*head, *lines, *tail, found])


def compare(dataset: Dataset, old: Dataset) -> Comparison:
    """Compare the train split of ``dataset`` with that of ``old``, or all rows of both where one has no train split.

    A feature is cut where its bins in ``old`` end (the newest ones; the exact quantiles of the rows compared if there are
    none), which are joined to 20 cells of about equal mass (fewer for less than 200 queries); heavy values keep cells of their own, and so have missing values, and
    values below and above all of ``old``'s.  `pipeline.drift.psi` says what the index is and what chance makes of it; an
    alarm is one above 0.1 that chance makes once in a thousand comparisons, with as many features as there are.

    Raises
    ------
    InputError
        The datasets have no feature in common.
    """
    names = [name for name in old.feature_names if name in set(dataset.feature_names)]
    if not names:
        raise InputError(f"{dataset.path} and {old.path}: no feature of the one is in the other")
    split: SplitName | None = "train"
    if any("train" not in some.manifest.splits for some in (dataset, old)):
        split = None
    starts = old.queries(split).starts, dataset.queries(split).starts
    tail = FALSE_ALARMS / (len(names) + 1)
    known = {bins.name: bins for bins in old.binspec().features} if old.manifest.bins and split else {}
    features = tuple(
        feature_drift(name, before, now, starts, tail, known.get(name))
        for (name, before), (_, now) in zip(
            columns_of(old, split, features=names), columns_of(dataset, split, features=names), strict=True
        )
    )
    grades = [some.rows(split, ["grade"]).column(0).to_numpy() for some in (old, dataset)]
    return Comparison(
        digest=dataset.digest,
        against=old.digest,
        split=split,
        rows=(int(starts[0][-1]), int(starts[1][-1])),
        queries=(len(starts[0]) - 1, len(starts[1]) - 1),
        grades=feature_drift(GRADES, grades[0].astype(EDGE), grades[1].astype(EDGE), starts, tail),
        features=features,
        came=tuple(name for name in dataset.feature_names if name not in set(names)),
        went=tuple(name for name in old.feature_names if name not in set(names)),
    )


def feature_drift(
    name: str,
    before: Values,
    now: Values,
    starts: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    tail: float,
    bins: FeatureBins | None = None,
) -> Drift:
    """Compare the values ``before`` (n,) with those of ``now`` (m,), whose queries begin at ``starts`` (q + 1,) each.

    ``tail`` is how often chance may raise an alarm; ``bins`` are those of ``before`` if they are known.
    """
    most = min(VALUE_CELLS, max(2, min(len(of) - 1 for of in starts) // _QUERIES_A_CELL))
    edges, low, high = cell_edges(feature_bins(name, before) if bins is None else bins, most)
    counted = [_cells(values, of, edges, low, high) for values, of in zip((before, now), starts, strict=True)]
    index = Index.of(*counted)
    counts = [cells.counts for cells in counted]
    missing, beyond = (int(c[0]) / max(1, int(c.sum())) for c in counts), counts[1][[1, -1]].sum()
    first, second = missing
    return Drift(
        name=name,
        psi=index.psi,
        expected=index.expected,
        threshold=max(LARGE, index.quantile(tail)),
        cells=len(counts[0]),
        effective_rows=index.effective,
        missing=(first, second),
        beyond=int(beyond) / max(1, int(counts[1].sum())),
    )


def cell_edges(bins: FeatureBins, most: int = VALUE_CELLS) -> tuple[Values, np.float32, np.float32]:
    """Return where ``bins`` are cut into at most ``most`` cells of about equal mass, and the least and the greatest value."""
    low, high = (np.nan if value is None else value for value in (bins.minimum, bins.maximum))
    cumulative = np.concatenate(([0], np.cumsum(bins.counts[1:])))
    ends = bin_ends(cumulative.astype(np.int64), most)
    return bins.edges[ends[:-1] - 1], EDGE(low), EDGE(high)


def _cells(values: Values, starts: npt.NDArray[np.int64], edges: Values, low: np.float32, high: np.float32) -> Cells:
    found = np.empty(len(values), dtype=np.uint8)
    _kernels.place(values, edges, low, high, found)
    return Cells.of(found, starts, len(edges) + 1 + _OTHERS)
