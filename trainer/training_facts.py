"""Records of a training in the manifest of a registered version, and in its attachment ``circumstances``.

The trainer writes them; the registry, the report and ``models diff`` read them.  Models of other programs are
registered as well, so readers must expect any fact to be missing.  The facts that every version must state are in
:mod:`rankmill.registry.stored_records`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import fsum, sqrt
from typing import Any

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.options import with_option_names
from rankmill.foundation.records import from_json, left_out

CIRCUMSTANCES = "circumstances"  # the name of the attachment
Metrics = Mapping[str, Mapping[str, float]]  # by split and metric
_STEPS = {"net": "epochs"}  # of which kinds of models do not count rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file, by name and content."""

    name: str
    size: int
    sha256: str
    split: str | None = left_out()
    sizes: str | None = left_out()  # digest of the file of query sizes beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """Input files; of too many only their number, their size and the digest of their list."""

    files: int
    bytes: int
    list: tuple[InputFile, ...] | None = left_out()
    list_sha256: str | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """Preference pairs of a dataset."""

    pairs: int | None = left_out()
    sources: InputFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How queries were assigned to splits: by folds, by time, by shares of a hash, or by input file."""

    column: str | None = left_out()  # of the time
    files: bool | None = left_out()
    fold: int | None = left_out()
    folds: int | None = left_out()
    shares: Mapping[str, float] | None = left_out()
    time: Mapping[str, str] | None = left_out()  # start of each split


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSize:
    """Size of a split."""

    queries: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """What a model was trained on."""

    rows: int
    queries: int
    max_bin: int | None = left_out()
    split_by: SplitRule | None = left_out()
    splits: Mapping[str, SplitSize] = field(default_factory=dict)
    sources: InputFiles | None = left_out()
    judgments: InputFiles | None = left_out()
    pairs: PairFacts | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherModel:
    """Another model, by its digest and, if it came from a registry, as NAME@7."""

    sha256: str
    model: str | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedModel(OtherModel):
    """A model of a sum, and what its scores are multiplied by; of a blend also what `rankmill models blend` prints."""

    weight: float
    share: float | None = left_out()  # multiplies the scores over their spread
    alone: float | None = left_out()  # its metric


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldFacts:
    """A cross-validation: the number of folds, and the standard deviation over them of every metric."""

    folds: int
    deviations: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitFacts:
    """The second training of a model, on the train and valid splits together; its metrics are those of the first."""

    rows: int
    queries: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric over several seeds."""

    mean: float
    deviation: float
    """Standard deviation with n - 1 degrees of freedom, as that of
    :class:`rankmill.scorer.evaluate.comparison.SeedNoise`."""
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of two values or more.

        >>> Spread.of([0.5, 1.5]).mean
        1.0
        """
        mean = fsum(values) / len(values)
        deviation = sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        return cls(mean=mean, deviation=deviation, least=min(values), greatest=max(values))


NoiseFloor = Mapping[str, Mapping[str, Spread]]  # by split and metric


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOfSeveral:
    """One of the trainings that a model was chosen from."""

    sha256: str
    best_round: int
    rounds_trained: int
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFacts(OneOfSeveral):
    """The training with one of several seeds."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsFacts:
    """Several seeds, of which one was chosen, or all were averaged."""

    choose: str
    chosen: int | None = left_out()  # None: the average
    trained: tuple[SeedFacts, ...]
    noise_floor: NoiseFloor = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """One kind of model that was tried for a blend."""

    kind: str
    share: float  # of the scores divided by their spread; 0: left out
    rounds: int  # or epochs
    alone: float | None  # its metric on the queries that were judged

    def words(self) -> str:
        """Return the share and what it is of."""
        return f"{self.share:.0%} ({_value(self.alone)} alone, {self.rounds:,} {_STEPS.get(self.kind, 'rounds')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendFacts:
    """The kinds of models that were tried for a blend, and how good they are together."""

    kinds: tuple[KindFacts, ...]
    measured: str  # the metric
    together: float | None
    judged: str  # "400 queries in 3 folds"

    def line(self) -> str:
        """Return what was tried and chosen, in one line.

        >>> trees = KindFacts(kind="trees", share=0.75, rounds=1200, alone=0.5)
        >>> net = KindFacts(kind="net", share=0.25, rounds=9, alone=0.4)
        >>> BlendFacts(kinds=(trees, net), measured="map", together=0.6, judged="80 queries").line()
        'blend of trees 75% (0.5000 alone, 1,200 rounds), net 25% (0.4000 alone, 9 epochs); map 0.6000 of 80 queries'
        """
        words = ", ".join(f"{each.kind} {each.words()}" for each in self.kinds)
        return f"blend of {words}; {self.measured} {_value(self.together)} of {self.judged}"


def _value(found: float | None) -> str:
    return "no value" if found is None else f"{found:.4f}"


def parameters_in_words(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``stored`` parameters as options spell them; of a blend of kinds, the facts of each kind in words.

    >>> parameters_in_words({"kinds": [{"kind": "net", "share": 0.25, "rounds": 9, "alone": 0.4}], "preset": "auto-2"})
    {'net': '25% (0.4000 alone, 9 epochs)', 'preset': 'auto-2'}
    """
    found = with_option_names(stored)
    if isinstance(kinds := found.get("kinds"), list):
        with suppress(IntegrityError):  # of another program
            facts = [from_json(KindFacts, each, "kinds") for each in kinds]
            del found["kinds"]
            found = {**{each.kind: each.words() for each in facts}, **found}
    return found


CLICKS, JUDGMENTS = "clicks", "judgments"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickFacts:
    """How clicks were corrected, and the same training without the correction."""

    correction: str
    position_bias: Mapping[str, tuple[float, ...]] | None = left_out()  # ``position``, and what was learnt for each
    valid_has: str | None = left_out()  # clicks (grades 0 and 1) or judgments (higher ones)
    naive: OneOfSeveral | None = left_out()

    def lines(self, metrics: Metrics) -> list[str]:
        """Return lines for people; ``metrics`` are those of the corrected model.

        >>> naive = OneOfSeveral(sha256="", best_round=7, rounds_trained=9, metrics={"valid": {"ndcg@10": 0.25}})
        >>> bias = {"position": (1, 2), "additive": (0.0, -0.5)}
        >>> facts = ClickFacts(correction="additive", position_bias=bias, valid_has="judgments", naive=naive)
        >>> for line in facts.lines({"valid": {"ndcg@10": 0.5}}):
        ...     print(line)
        clicks corrected by additive: 1 0.000, 2 -0.500
        valid ndcg@10 (judgments): naive 0.2500, corrected 0.5000
        """
        learnt = self.position_bias or {}
        positions = [int(position) for position in learnt.get("position", ())]
        words = [
            ", ".join(f"{position} {value:.3f}" for position, value in zip(positions, values, strict=True))
            for name, values in learnt.items()
            if name != "position"
        ]
        lines = [f"clicks corrected by {self.correction}{': ' * bool(words)}{'; not clicked: '.join(words)}"]
        if self.naive is None:
            return lines
        split, of = ("train", CLICKS) if self.valid_has is None else ("valid", self.valid_has)
        corrected = metrics.get(split, {})
        return lines + [
            f"{split} {metric} ({of}): naive {value:.4f}, corrected {corrected[metric]:.4f}"
            for metric, value in self.naive.metrics.get(split, {}).items()
            if metric in corrected
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """The manifest of a version: what determines the bytes of the model, and its metrics."""

    features: tuple[str, ...] | None = left_out()
    dataset_digest: str | None = None
    dataset: DatasetFacts | None = left_out()
    binspec_digest: str | None = left_out()
    parameters: Mapping[str, Any] | None = left_out()
    changed_parameters: tuple[str, ...] | None = left_out()  # those that differ from the defaults
    code_digest: str | None = left_out()
    max_grade: int | None = left_out()
    learnt_from: str | None = left_out()  # grades, pairs or both, if there was a choice
    n_outputs: int | None = (
        left_out()
    )  # this and the next two: of models with several outputs, or several trees per round
    link: str | None = left_out()
    trees_a_round: int | None = left_out()
    base_model: OtherModel | None = left_out()
    metrics: Mapping[str, Any] | None = left_out()
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] | None = left_out()  # 95 %, by split and metric
    best_round: int | None = left_out()
    rounds_trained: int | None = left_out()
    cross_validation: FoldFacts | None = left_out()
    refit: RefitFacts | None = left_out()
    seeds: SeedsFacts | None = left_out()
    clicks: ClickFacts | None = left_out()
    merged: tuple[MergedModel, ...] | None = left_out()  # of a sum of models

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> TrainingFacts | None:
        """Read a manifest; None if facts of these names mean something else there."""
        try:
            return from_json(cls, manifest, "manifest")
        except IntegrityError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts of a training that do not determine the bytes of the model: libraries, machine, the model it resumed."""

    libraries: Mapping[str, str] = field(default_factory=dict)
    python: str | None = left_out()
    machine: str | None = left_out()
    system: str | None = left_out()
    resumed: OtherModel | None = left_out()

    @classmethod
    def of(cls, attachment: bytes | None) -> Circumstances | None:
        """Read the attachment; None if it is missing or something else."""
        try:
            return None if attachment is None else from_json(cls, attachment, CIRCUMSTANCES)
        except IntegrityError:
            return None
