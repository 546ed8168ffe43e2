"""The records that a registry stores as JSON: manifests and log entries, and how files carry their digest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError

from rankmill.foundation.errors import InputError, IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.names import check_alias


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"expected one line of printable text, found {text!r}")
    return text


def _alias(text: str) -> str:
    try:
        return check_alias(text)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"expected a time such as 2026-05-09T07:35:25.000Z, found {text!r}")
    return text


Line = Annotated[str, AfterValidator(_line)]
"""Text that is shown later."""
Alias = Annotated[str, AfterValidator(_alias)]
Time = Annotated[str, AfterValidator(_time)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class VersionManifest(BaseModel):
    """The required facts of every version; other JSON facts are kept and shown as they are.

    A misspelt required fact is reported as missing.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    __pydantic_extra__: dict[str, JsonValue]

    features: Annotated[tuple[str, ...], Field(min_length=1)]
    """All features of the training data, in order."""
    dataset_digest: Sha256 | None
    """Digest of the training data; None for a model trained on arrays in memory."""
    parameters: dict[str, JsonValue]
    """Training parameters, by their names in Python."""
    metrics: dict[str, JsonValue]
    """Numbers, or mappings to numbers, such as ``{"valid": {"ndcg@10": 0.51}}``."""


def manifest_bytes(facts: Mapping[str, object]) -> bytes:
    """Check ``facts`` against `VersionManifest` and return their canonical JSON.

    Raises
    ------
    InputError
        A fact is missing, of the wrong type, or not JSON; the message names it.
    """
    try:
        data = canonical_json(dict(facts))
    except (TypeError, ValueError) as error:
        raise InputError(f"manifest: expected JSON values (finite numbers, text, lists, mappings): {error}") from error
    try:
        VersionManifest.model_validate_json(data)
    except ValidationError as error:
        raise InputError(f"manifest: {first_fault(error)}") from error
    return data


def first_fault(error: ValidationError) -> str:
    """Describe the first error of pydantic on one line: where it is and what it is."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else fault["msg"]


def seal(name: str, body: bytes) -> bytes:
    """Return the content of a file with ``body`` and its digest.

    >>> seal("entry", b"{}")[:22]
    b'{"entry":{},"sha256":"'
    """
    return b'{"%b":%b,"sha256":"%b"}\n' % (name.encode(), body, digest_of(body).encode())


def unseal(name: str, data: bytes) -> bytes:
    """Return the body of a sealed file; IntegrityError if it is not exactly what `seal` returns.

    >>> unseal("entry", seal("entry", b"{}"))
    b'{}'
    """
    around = len(seal(name, b""))
    body = data[len(name) + 4 : len(data) - around + len(name) + 4]
    if len(data) < around or seal(name, body) != data or (body[:1], body[-1:]) != (b"{", b"}"):
        raise IntegrityError("not written by rankmill, truncated, or changed after it was written")
    return body


Number = Annotated[int, Field(ge=1)]
Key = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class StoredRecord(BaseModel):
    """Strict: no unknown field, no conversion; and frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Register(StoredRecord):
    """A new version: digests of its model bytes, manifest and attachments, and the size of the model in bytes."""

    op: Literal["register"]
    version: Number
    model: Sha256
    size: Annotated[int, Field(ge=0)]
    manifest: Sha256
    attachments: dict[Key, Sha256] = Field(default_factory=dict)
    """Digests of further blobs, by name."""


class Move(StoredRecord):
    """An alias now points to ``version``; before, it pointed to ``previous`` (None: not set)."""

    op: Literal["promote", "rollback", "force"]
    alias: Alias
    version: Number
    previous: Number | None
    gate: Number | None = None
    """The entry of the gate result that permitted the promotion to a protected alias."""
    waived: Line | None = None
    """The failed condition of a forced promotion."""


class Unset(StoredRecord):
    """An alias is removed; before, it pointed to ``previous``."""

    op: Literal["unset"]
    alias: Alias
    previous: Number


class AliasPolicy(StoredRecord):
    """What the gate must have measured before a protected alias moves; None: anything."""

    metric: Line | None = None
    convention: Sha256 | None = None
    """sha256 of the canonical JSON of the metric's convention."""
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The largest margin of non-inferiority, in units of the metric."""
    dataset: Sha256 | None = None
    never_worse: bool = False
    """Whether a version that is significantly worse is refused even if an option of the gate allowed it."""

    def shortfall(self, gate: GateRecord) -> str | None:
        """Return in which way the result violates the policy; None if it satisfies it."""
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
        if self.never_worse and gate.worse:
            option = "--allow-significantly-worse (allow_significantly_worse in [gate])"
            return f"expected no significantly worse version, found one; leave out {option}"
        return None


class Protect(StoredRecord):
    """An alias is protected by ``policy`` from now on; None: it is open."""

    op: Literal["protect"]
    alias: Alias
    policy: AliasPolicy | None


class GateRecord(StoredRecord):
    """A version was compared with ``baseline``, the target of ``alias`` (None: not set); details are in the report."""

    op: Literal["gate"]
    version: Number
    alias: Alias
    passed: bool
    baseline: Number | None
    report: Sha256
    model: Sha256
    dataset: Sha256
    split: Line
    metric: Line
    convention: Sha256
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    worse: bool = False
    """Whether the version passed although it is significantly worse, which an option of the gate allowed."""


class Sweep(StoredRecord):
    """The model bytes of these versions are deleted; their manifests and history stay."""

    op: Literal["sweep"]
    versions: Annotated[tuple[Number, ...], Field(min_length=1)]


Change = Annotated[Register | Move | Unset | Protect | GateRecord | Sweep, Field(discriminator="op")]


def record_json(record: StoredRecord) -> dict[str, JsonValue]:
    """Return the JSON of a file, without unset fields."""
    return record.model_dump(mode="json", exclude_unset=True)


class Entry(StoredRecord):
    """One transaction: what changed, when (UTC), by whom, why; ``prev`` is the digest of the entry before it."""

    number: Number
    prev: Sha256
    txid: Line
    change: Change
    time: Time
    actor: Line
    host: Line
    reason: Line

    @property
    def digest(self) -> str:
        """Digest of this entry and, through ``prev``, of all entries before it."""
        return digest_of(canonical_json(record_json(self)))

    def to_bytes(self) -> bytes:
        """Return the file."""
        return seal("entry", canonical_json(record_json(self)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        """Read a file; IntegrityError if it is not exactly what `to_bytes` writes."""
        body = unseal("entry", data)
        try:
            entry = cls.model_validate_json(body)
        except ValidationError as error:
            unknown = f"this version of rankmill does not know this entry: {first_fault(error)}"
            raise IntegrityError(f"{unknown}; use the version that wrote it, or a later one") from None
        if canonical_json(record_json(entry)) != body:
            raise IntegrityError("changed after it was written")
        return entry
