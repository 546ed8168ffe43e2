"""Random histories of a model, through the registry's own doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from rankmill.foundation.errors import RankmillError
from rankmill.foundation.storage.location import Location
from rankmill.registry.model_registry import Registry
from tests.registry.conftest import FACTS, outcome

Step = Callable[[Registry, str], object]
VERSIONS, ALIASES = st.integers(1, 4), st.sampled_from(["blue", "green"])
REASONS = st.sampled_from(["", "nightly", "größer ≥ 0.5", "\U0001f600"])


def _register(model: int, facts: int, attached: bool, reason: str) -> Step:
    further = {"notes": b"notes %d" % facts, "sketch": bytes(range(256))} if attached else None
    return lambda r, name: r.register(
        name,
        b"model %d" % model * model * 300,
        manifest=FACTS | {"best_round": facts},
        attachments=further,
        reason=reason,
    )


def _gate(version: int, alias: str, passed: bool) -> Step:
    def step(registry: Registry, name: str) -> object:
        found = outcome(version, alias=alias, passed=passed, margin=0.01)
        return registry.record_gate(name, found, {"version": version})

    return step


STEPS = st.one_of(
    st.builds(_register, VERSIONS, VERSIONS, st.booleans(), REASONS),
    st.builds(lambda v, a, why: lambda r, n: r.promote(n, v, alias=a, reason=why), VERSIONS, ALIASES, REASONS),
    st.builds(lambda a: lambda r, n: r.rollback(n, alias=a), ALIASES),
    st.builds(lambda a: lambda r, n: r.unset(n, a), ALIASES),
    st.builds(_gate, VERSIONS, ALIASES, st.booleans()),
)
HISTORIES = st.lists(STEPS, max_size=12).map(lambda steps: [_register(1, 1, False, "first"), *steps])


def play(registry: Registry, steps: list[Step], name: str = "web") -> None:
    """Take the steps; what the registry refuses is not taken."""
    for step in steps:
        try:
            step(registry, name)
        except RankmillError:
            continue


def seen(root: Location) -> dict[str, Any]:
    """Everything that a reader returns."""
    registry = Registry(root)
    reported: dict[str, Any] = {
        name: {
            "log": [entry.digest for entry in registry.log(name)],
            "versions": [
                {
                    "version": version.number,
                    "sha256": version.sha256,
                    "size": version.size,
                    "manifest": version.manifest_sha256,
                    "aliases": list(version.aliases),
                    "time": version.registered.time,
                    "reason": version.registered.reason,
                }
                for version in registry.versions(name)
            ],
        }
        for name in registry.names()
    }
    for name, model in reported.items():
        for version, row in zip(registry.versions(name), model["versions"], strict=True):
            further = {
                "attachments": dict(version.row.attachments),
                "gates": {alias: entry.number for alias, entry in version.gates.items()},
                "swept": version.swept_in,
            }
            row |= {key: value for key, value in further.items() if value}
    return reported
