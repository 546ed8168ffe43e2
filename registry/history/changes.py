"""What one entry of a log can say: one record for each kind of change, told apart by ``op``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from rankmill.registry.manifest import Sha256

Number = Annotated[int, Field(ge=1)]
Key = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class Record(BaseModel):
    """Strict: no unknown field, no conversion; and frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Register(Record):
    """A new version: the digests of its model bytes and manifest, the size of the model in bytes, and what goes with it."""

    op: Literal["register"]
    version: Number
    model: Sha256
    size: Annotated[int, Field(ge=0)]
    manifest: Sha256
    attachments: dict[Key, Sha256] = Field(default_factory=dict)
    """Digests of further blobs, by what they are."""


class Move(Record):
    """An alias now means ``version``; before, it meant ``previous`` (None: nothing)."""

    op: Literal["promote", "rollback", "force"]
    alias: str
    version: Number
    previous: Number | None
    gate: Number | None = None
    """The entry of the gate's result that a promotion to a protected alias rests on."""
    waived: str | None = None
    """What would have refused a forced promotion."""


class Unset(Record):
    """An alias means nothing any more; before, it meant ``previous``."""

    op: Literal["unset"]
    alias: str
    previous: Number


class Tag(Record):
    """A version has a word to its name: ``key`` is ``value``; None takes it away."""

    op: Literal["tag"]
    version: Number
    key: Key
    value: str | None


class Policy(Record):
    """What the gate must have measured before a protected alias moves; None: anything will do."""

    metric: str | None = None
    convention: Sha256 | None = None
    """sha256 of the canonical JSON of the metric's convention."""
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The widest margin of non-inferiority, in units of the metric."""
    dataset: Sha256 | None = None

    def shortfall(self, gate: Gate) -> str | None:
        """Say in which way the result does not satisfy the policy; None if it does."""
        for what, wanted, found, option in (
            ("metric", self.metric, gate.metric, "--metric (metric in [gate])"),
            ("convention", self.convention, gate.convention, "--convention (convention in [evaluate])"),
            ("dataset", self.dataset, gate.dataset, "--on"),
        ):
            if wanted is not None and found != wanted:
                return f"expected {what} {wanted}, found {found}; {option} sets it"
        if self.margin is not None and gate.margin > self.margin:
            found = f"{gate.margin:g}; --margin (margin in [gate]) sets it"
            return f"expected a margin of at most {self.margin:g}, found {found}"
        return None


class Protect(Record):
    """From now on an alias moves to what has passed the gate; a policy of None leaves it open."""

    op: Literal["protect"]
    alias: str
    policy: Policy | None


class Gate(Record):
    """A version was compared with what ``alias`` meant (None: nothing yet); the report says how."""

    op: Literal["gate"]
    version: Number
    alias: str
    passed: bool
    baseline: Number | None
    report: Sha256
    model: Sha256
    dataset: Sha256
    split: str
    metric: str
    convention: Sha256
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Mark(Record):
    """These versions, and no others, are to lose their model bytes after the time of grace."""

    op: Literal["mark"]
    versions: tuple[Number, ...]


class Sweep(Record):
    """These versions have no model bytes any more; their manifests and history stay."""

    op: Literal["sweep"]
    versions: Annotated[tuple[Number, ...], Field(min_length=1)]


Change = Annotated[
    Register | Move | Unset | Tag | Protect | Gate | Mark | Sweep,
    Field(discriminator="op"),
]


def as_json(record: Record) -> dict[str, JsonValue]:
    """As it stands in a file: only what was set, so that a field added later does not change the bytes of old entries."""
    return record.model_dump(mode="json", exclude_unset=True)
