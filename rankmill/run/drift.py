"""Check the dataset for drift: write ``WORK/drift.json``, and keep statistics for the next comparison.

A run overwrites the previous dataset, so ``against = "previous"`` compares with its statistics: those of the new
dataset are written to ``WORK/drift/next.parquet`` and become ``WORK/drift/previous.parquet`` when a run ends.  A killed
or stopped run keeps the previous statistics, so that the next run compares with the same dataset again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.config import PREVIOUS
from rankmill.foundation.errors import ConfigError, DriftAlarm
from rankmill.foundation.shown import few
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.statistics.dataset_drift import DriftComparison, compare, compare_and_keep
from rankmill.pipeline.statistics.drift_reference import DriftReference, digest_in
from rankmill.run import DRIFT
from rankmill.run.stage_facts import DriftFacts

if TYPE_CHECKING:
    from rankmill.config import DriftSection

FORMAT = 1
KEPT, NEXT = Path("drift") / "previous.parquet", Path("drift") / "next.parquet"
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class DriftFound:
    """The content of ``WORK/drift.json``.

    Attributes
    ----------
    report
        The report; ``against`` is None if there was nothing to compare with.
    path
        Path of the file.
    new
        Whether it was written by this run.
    """

    report: Mapping[str, Any]
    path: Path
    new: bool

    @property
    def against(self) -> str | None:
        """The digest of the older dataset; None if there was nothing to compare with."""
        found: str | None = self.report["against"]
        return found

    @property
    def alarms(self) -> tuple[str, ...]:
        """The names of features, or the grades, that drifted, appeared or disappeared."""
        return tuple(self.report["alarms"])

    @property
    def psi_max(self) -> float | None:
        """The largest PSI of a feature or of the grades; None if nothing was compared."""
        found = [self.report["grades"], *self.report["features"]] if self.against is not None else []
        return max((float(each["psi"]) for each in found), default=None)

    @property
    def facts(self) -> DriftFacts:
        """The facts for the record of the stage."""
        return DriftFacts(against=self.against, psi_max=self.psi_max, alarms=self.alarms)

    def line(self) -> str:
        """Return the result on one line."""
        if self.against is None:
            return "drift: there is no previous dataset to compare with yet; this dataset is kept for the next run"
        text = f"drift: of {len(self.report['features']):,} features and the grades "
        return text + (
            f"{few(self.alarms, _MOST_NAMED)} drifted, appeared or disappeared" if self.alarms else "none drifted"
        )

    def require(self) -> None:
        """Raise DriftAlarm if anything drifted, appeared or disappeared."""
        if self.alarms:
            raise DriftAlarm(
                f"the data drifted from the former dataset in {few(self.alarms, _MOST_NAMED)}; see {self.path} for "
                "the numbers; check the sources, and train with [drift] stop = false if the data are correct"
            )


def check_drift(rules: DriftSection, one_path: Callable[[str], Path], dataset: Path) -> None:
    """Check ``[drift] against`` before the run; ``dataset`` is the one that the run replaces.

    Raises
    ------
    ConfigError
        It is the same dataset.
    InputError, DatasetFormatError
        It is not a dataset.
    """
    if rules.against == PREVIOUS:
        return
    former = one_path(rules.against)
    if former.resolve() == dataset.resolve():
        raise ConfigError(
            f'[drift] against: {former} is replaced by this run; name a copy of a former dataset, or "{PREVIOUS}"'
        )
    Dataset.open(former)


def drift_of(dataset: Dataset, rules: DriftSection, one_path: Callable[[str], Path], work: Path) -> DriftFound:
    """Compare ``dataset`` with the reference in ``rules``, and write the report to ``work``.

    An existing report on the same two datasets is returned; so is the previous report if the dataset is unchanged.  The
    report has no times and no paths: the same two datasets give the same bytes.  Memory: a few columns of the train
    split.

    Parameters
    ----------
    dataset
        The dataset of the run, with bins.
    rules
        ``[drift]``.
    one_path
        Returns the path of a dataset that ``rules`` names.
    work
        The work folder.

    Raises
    ------
    InputError
        The datasets have no feature in common.
    DatasetFormatError
        The older dataset or its stored statistics are damaged.
    """
    path = work / DRIFT
    if rules.against == PREVIOUS:
        return _against_previous(dataset, path, work)
    former = Dataset.open(one_path(rules.against))
    known = _known(path, dataset.digest)
    if known is not None and known.against == former.digest:
        return known
    return _written(path, dataset.digest, compare(dataset, former))


def unreported_drift(dataset: Dataset, rules: DriftSection, work: Path) -> DriftFound | None:
    """Return the drift of ``dataset`` recorded in ``work``; None if an earlier run has reported it at its end.

    Against a fixed dataset, every run reports the drift.
    """
    path = work / DRIFT
    known = _known(path, dataset.digest)
    if known is None or (
        rules.against == PREVIOUS and (work / KEPT).exists() and digest_in(work / KEPT) == dataset.digest
    ):
        return None
    return known


def keep_for_next(dataset: Dataset, work: Path) -> None:
    """Make ``dataset`` the reference of the next run; called at the end of every run."""
    if digest_in(work / NEXT) == dataset.digest:
        (work / NEXT).replace(work / KEPT)


def _against_previous(dataset: Dataset, path: Path, work: Path) -> DriftFound:
    (work / KEPT).parent.mkdir(exist_ok=True)
    previous = digest_in(work / KEPT) if (work / KEPT).exists() else None
    known = _known(path, dataset.digest)
    kept = dataset.digest in {previous, digest_in(work / NEXT)}
    if known is not None and kept and previous in {dataset.digest, known.against}:
        return known
    if not (work / KEPT).exists():
        DriftReference.of(dataset).write(work / NEXT)
        return _written(path, dataset.digest, None)
    comparison, found = compare_and_keep(dataset, DriftReference.read(work / KEPT))
    found.write(work / NEXT)
    return _written(path, dataset.digest, comparison)


def _known(path: Path, digest: str) -> DriftFound | None:
    """Return the report at ``path`` if it is valid and on the dataset ``digest``."""
    try:
        report = json.loads(path.read_bytes())
        whole = report["format"] == FORMAT and report["digest"] == digest
        complete = whole and {"against", "alarms", "grades", "features"} <= report.keys()
        return DriftFound(report, path, new=False) if complete else None
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def _written(path: Path, digest: str, comparison: DriftComparison | None) -> DriftFound:
    if comparison is None:
        found: Mapping[str, Any] = {"digest": digest, "against": None, "alarms": [], "grades": None, "features": []}
    else:
        found = json.loads(comparison.to_json())
    report = {"format": FORMAT, **found}
    text = json.dumps(report, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())
    return DriftFound(report, path, new=True)
