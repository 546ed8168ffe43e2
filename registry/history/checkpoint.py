"""``models/<name>/checkpoint.json``: the fold of a log up to some entry, so that readers need not fold it all.

Advisory: it may be missing, old or damaged, and may be deleted at any time.  It is believed only if it has its own
digest and the entry that it claims to end with has the digest that it names, which stands for everything before.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.registry.blob_store import Store
from rankmill.registry.history.state import State
from rankmill.registry.sealed import seal, unseal

FORMAT = 1
LARGEST = 1 << 30  # bytes, of a million versions


def is_due(head: int, checkpoint: int) -> bool:
    """Whether a log that has reached ``head`` is worth a new checkpoint: writing it costs as much as folding a few hundred entries."""
    return head - checkpoint >= max(100, head // 20)


def path_of(store: Store, name: str) -> Path:
    """Where the checkpoint of model ``name`` lies."""
    return store.root / "models" / name / "checkpoint.json"


def write_checkpoint(store: Store, name: str, state: State) -> None:
    """Keep ``state``; best effort, and not flushed: a torn one is not believed."""
    body = canonical_json({"format": FORMAT, "state": state.to_json()})
    with contextlib.suppress(OSError):
        store.replace(path_of(store, name), seal("checkpoint", body))


def parse(data: bytes) -> State | None:
    """Read the bytes of a checkpoint; None if they are not whole, of another format, or another program's."""
    body, unchanged = unseal("checkpoint", data) or (b"", False)
    if not unchanged:
        return None
    try:
        value: dict[str, Any] = json.loads(body)
        return State.from_json(value["state"]) if value["format"] == FORMAT else None
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # as its writer meant it, who kept other things of a state
        return None


def read_checkpoint(store: Store, name: str) -> State | None:
    """Return what the checkpoint holds; whether it fits the log is for `rankmill.registry.history.log.Log.state` to see."""
    with contextlib.suppress(OSError, IntegrityError):
        return parse(store.read(path_of(store, name), LARGEST))
    return None
