"""What a model is called: by its digest, and as a version of a registry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The digest of a model, and its name and number if it is a version of a registry."""

    sha256: str
    name: str | None = None
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.number}" if self.name is not None else f"sha256 {self.sha256[:12]}"
