"""Check the dataset for drift: write ``WORK/drift.json``, and keep statistics for the next comparison.

A run overwrites the former dataset, so ``against = "previous"`` compares with its statistics: those of the new dataset are written to
``WORK/drift/next.parquet`` and become ``WORK/drift/previous.parquet`` when a run ends.  A run that is killed or stopped leaves the
previous statistics, so that the next run compares with the same dataset again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.config import PREVIOUS
from rankmill.foundation.errors import ConfigError, DriftAlarm
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.dataset import Dataset
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
    """What ``WORK/drift.json`` says.

    Attributes
    ----------
    report
        Its content; ``against`` is None where there was nothing to compare with.
    path
        Where it is.
    new
        Whether it was written now.
    """

    report: Mapping[str, Any]
    path: Path
    new: bool

    @property
    def against(self) -> str | None:
        """The digest of the former dataset; None where there was nothing to compare with."""
        found: str | None = self.report["against"]
        return found

    @property
    def alarms(self) -> tuple[str, ...]:
        """The features that drifted, appeared or disappeared; the grades by name as well."""
        return tuple(self.report["alarms"])

    @property
    def psi_max(self) -> float | None:
        """The largest index of a feature or of the grades; None where nothing was compared."""
        found = [self.report["grades"], *self.report["features"]] if self.against is not None else []
        return max((float(each["psi"]) for each in found), default=None)

    @property
    def facts(self) -> DriftFacts:
        """What the record of the stage keeps of it."""
        return DriftFacts(against=self.against, psi_max=self.psi_max, alarms=self.alarms)

    def line(self) -> str:
        """Return it in one line for a person."""
        if self.against is None:
            return "drift: there is no previous dataset to compare with yet; this dataset is kept for the next run"
        said = f"drift: of {len(self.report['features']):,} features and the grades "
        return said + (f"{_named(self.alarms)} drifted, appeared or disappeared" if self.alarms else "none drifted")

    def require(self) -> None:
        """Raise DriftAlarm if anything drifted, appeared or disappeared."""
        if self.alarms:
            raise DriftAlarm(
                f"the data drifted from the former dataset in {_named(self.alarms)}; see {self.path} for the numbers;"
                " check the sources, and train with [drift] stop = false if the data are correct"
            )


def check_drift(rules: DriftSection, folder: Path, dataset: Path) -> None:
    """Look up, before anything is run, what ``[drift] against`` names; ``dataset`` is what the run makes anew.

    Raises
    ------
    ConfigError
        It is the dataset that the run replaces.
    InputError, DatasetFormatError
        It is no dataset.
    """
    if rules.against == PREVIOUS:
        return
    former = folder / rules.against
    if former.resolve() == dataset.resolve():
        raise ConfigError(
            f'[drift] against: {former} is replaced by this run; name a copy of a former dataset, or "{PREVIOUS}"'
        )
    Dataset.open(former)


def drift_of(dataset: Dataset, rules: DriftSection, folder: Path, work: Path) -> DriftFound:
    """Compare ``dataset`` with what ``rules`` name, and leave the report in ``work``.

    A report that is of this dataset against the same former one stands and is returned; so is that of the previous dataset
    where it is this one.  The report has no clocks and no paths: the same two datasets give the same bytes.  Memory is that of
    a few columns of the train split.

    Parameters
    ----------
    dataset
        The dataset of the run, with bins.
    rules
        ``[drift]``.
    folder
        Relative paths in ``rules`` start here.
    work
        The work folder.

    Raises
    ------
    InputError
        There is no feature in common.
    DatasetFormatError
        The former dataset or what is kept of it is damaged.
    """
    path = work / DRIFT
    if rules.against == PREVIOUS:
        return _against_previous(dataset, path, work)
    former = Dataset.open(folder / rules.against)
    known = _known(path, dataset.digest)
    if known is not None and known.against == former.digest:
        return known
    return _written(path, dataset.digest, compare(dataset, former))


def untold(dataset: Dataset, rules: DriftSection, work: Path) -> DriftFound | None:
    """Return the drift of ``dataset`` that ``work`` holds; None if an earlier run has reported it at its end.

    Against a fixed dataset every run reports drift, as long as there is some.
    """
    path = work / DRIFT
    known = _known(path, dataset.digest)
    if known is None or (
        rules.against == PREVIOUS and (work / KEPT).exists() and digest_in(work / KEPT) == dataset.digest
    ):
        return None
    return known


def keep_for_next(dataset: Dataset, work: Path) -> None:
    """Let the next run compare with ``dataset``: called at the end of a run, whatever it found."""
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
    comparison, found = compare_and_keep(dataset, DriftReference.read(work / KEPT), where="the previous dataset")
    found.write(work / NEXT)
    return _written(path, dataset.digest, comparison)


def _known(path: Path, digest: str) -> DriftFound | None:
    """Return the report at ``path`` if it is whole and of the dataset ``digest``."""
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


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
