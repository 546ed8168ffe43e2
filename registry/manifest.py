"""The version manifest: JSON facts that travel with a model's bytes, so that anyone can ask where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import canonical_json

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """The facts that every version must state; more of them, of any JSON shape, are kept and shown as they are.

    A misspelt required fact is noticed because it is then missing.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    __pydantic_extra__: dict[str, JsonValue]

    features: Annotated[tuple[str, ...], Field(min_length=1)]
    """All features of the training data, in order."""
    dataset_digest: Sha256 | None
    """Names the training data; None for a model trained on arrays in memory."""
    parameters: dict[str, JsonValue]
    """Training parameters, by their names in Python."""
    metrics: dict[str, JsonValue]
    """Numbers, or mappings to numbers, such as ``{"valid": {"ndcg@10": 0.51}}``."""


def manifest_bytes(facts: Mapping[str, object]) -> bytes:
    """Check ``facts`` against `Manifest` and return their canonical JSON.

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
        Manifest.model_validate_json(data)
    except ValidationError as error:
        raise InputError(f"manifest: {first_fault(error)}") from error
    return data


def first_fault(error: ValidationError) -> str:
    """Say on one line where the first of pydantic's complaints is and what it is."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else fault["msg"]
