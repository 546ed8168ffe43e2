"""Versioned model files on disk with digests, aliases and history.  The registry does not read trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankmill.registry.model_registry import Registry, Version

__all__ = ["Registry", "Version"]


def __getattr__(name: str) -> object:
    """Load the registry on first use: the command line must start without pydantic."""
    if name in __all__:
        from rankmill.registry import model_registry

        return getattr(model_registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
