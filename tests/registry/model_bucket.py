"""A bucket in memory."""

from __future__ import annotations

import errno
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rankmill.foundation.storage.bucket import ObjectFacts
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.registry.model_registry import Registry
from tests.registry.model_disk import Machine, ModelDisk

URL = ObjectUrl("s3", "models", "team/registry")
REQUESTS = ("get", "head", "names", "below", "put", "put_new", "delete")
_ONE_AT_A_TIME = threading.Lock()


@dataclass
class World:
    """The objects of all buckets, by URL, and the disk of the one machine that uses them."""

    objects: dict[ObjectUrl, tuple[bytes, float]] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    now: float = field(default_factory=lambda: time.time() - 3600.0)
    """The clock of the store; it moves by a millisecond with every request."""
    ignores_conditions: bool = False

    def copy(self) -> World:
        copied: World = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return copied


class ModelBucket:
    """One program's way to the objects of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def get(self, url: ObjectUrl, limit: int = -1) -> bytes:
        data = self._find(url)[0]
        return data if limit < 0 else data[:limit]

    def head(self, url: ObjectUrl) -> ObjectFacts:
        data, modified = self._find(url)
        return ObjectFacts(url, len(data), modified, str(hash(data)))

    def names(self, above: ObjectUrl) -> list[str]:
        first = f"{above.key}/" if above.key else ""
        return sorted(
            {u.key[len(first) :].partition("/")[0] for u in list(self.world.objects) if u.key.startswith(first)}
        )

    def below(self, above: ObjectUrl, after: str = "", prefix: str = "") -> list[ObjectFacts]:
        first = f"{above.key}/" if above.key else ""
        found = sorted(url for url in list(self.world.objects) if url.key.startswith(first + prefix))
        objects = [(url, self.world.objects.get(url)) for url in found if url.key[len(first) :] > after]
        return [ObjectFacts(url, len(o[0]), o[1], str(hash(o[0]))) for url, o in objects if o is not None]

    def put(self, url: ObjectUrl, data: bytes) -> None:
        self.world.now += 0.001
        self.world.objects[url] = (data, self.world.now)

    def put_new(self, url: ObjectUrl, data: bytes) -> bool:
        with _ONE_AT_A_TIME:
            if url in self.world.objects and not self.world.ignores_conditions:
                return False
            self.put(url, data)
            return True

    def delete(self, url: ObjectUrl) -> None:
        self.world.objects.pop(url, None)

    def _find(self, url: ObjectUrl) -> tuple[bytes, float]:
        if url not in self.world.objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(url))
        return self.world.objects[url]


class InterposedBucket:
    """Hands each request to ``around``."""

    def __init__(self, bucket: Any, around: Callable[..., object]) -> None:
        for name in REQUESTS:
            setattr(self, name, partial(around, name, getattr(bucket, name)))


def on(world: World, around: Callable[..., object] | None = None) -> Registry:
    bucket: Any = ModelBucket(world)
    return Registry(
        URL, disk=ModelDisk(world.machine), bucket=bucket if around is None else InterposedBucket(bucket, around)
    )


def content(world: World) -> frozenset[tuple[ObjectUrl, bytes]]:
    """Everything in the registry except what says nothing to readers."""
    return frozenset(
        (url, data) for url, (data, _) in world.objects.items() if url.key.removeprefix(URL.key).split("/")[1] != "tmp"
    )
