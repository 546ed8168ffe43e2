"""The facts of a manifest that `rankmill train` writes besides those that every version must state, as `show` tells them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class File(_Facts):
    """One input file."""

    name: str
    size: int
    sha256: str
    split: str | None = None


class Files(_Facts):
    """Input files; of too many only their number and the digest of their list."""

    files: int
    bytes: int
    listed: list[File] = Field(default=[], alias="list")
    list_sha256: str | None = None


class Pairs(_Facts):
    """Preference pairs."""

    sources: Files


class Count(_Facts):
    """Size of a split."""

    queries: int
    rows: int


class DatasetFacts(_Facts):
    """What it was trained on."""

    rows: int
    queries: int
    max_bin: int | None = None
    split_by: dict[str, JsonValue] = {}
    splits: dict[str, Count] = {}
    sources: Files | None = None
    judgments: Files | None = None
    pairs: Pairs | None = None


class Origin(_Facts):
    """Another model, by its digest and where it stood."""

    sha256: str
    model: str | None = None


class Spread(_Facts):
    """A metric over several seeds."""

    mean: float
    deviation: float


class OfSeed(_Facts):
    """A seed that was trained with the others."""

    seed: int


class Seeds(_Facts):
    """Several seeds, of which one was chosen or all were averaged."""

    choose: str
    trained: list[OfSeed]
    chosen: int | None = None
    noise_floor: dict[str, dict[str, Spread]] = {}


class TrainingFacts(_Facts):
    """All that is known by name; every one may be lacking."""

    dataset: DatasetFacts | None = None
    binspec_digest: str | None = None
    code_digest: str | None = None
    changed_parameters: list[str] | None = None
    intervals: dict[str, dict[str, list[float]]] = {}
    best_round: int | None = None
    rounds_trained: int | None = None
    base_model: Origin | None = None
    seeds: Seeds | None = None

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> TrainingFacts | None:
        """Read them; None if facts of these names say something else here."""
        try:
            return cls.model_validate(manifest)
        except ValidationError:
            return None


class Circumstances(_Facts):
    """The attachment of that name."""

    libraries: dict[str, str] = {}
    python: str | None = None
    system: str | None = None
    machine: str | None = None
    resumed: Origin | None = None

    @classmethod
    def of(cls, data: bytes | None) -> Circumstances | None:
        """Read it; None if it is not there, or something else."""
        try:
            return None if data is None else cls.model_validate_json(data)
        except ValidationError:
            return None
