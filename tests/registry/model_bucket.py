"""A bucket in memory, requests to it that go wrong, and what must hold of a registry in it."""

from __future__ import annotations

import errno
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from rankmill.foundation.storage.bucket import ObjectFacts, StoreError, StoreRefusal
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.registry.model_registry import Registry
from tests.registry.interposed import Killed
from tests.registry.model_disk import Machine, ModelDisk

URL = ObjectUrl("s3", "models", "team/registry")
REQUESTS = ("get", "head", "names", "below", "put", "put_new", "delete")
_ONE_AT_A_TIME = threading.Lock()
CHANGES = ("put", "put_new", "delete")


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


@dataclass(frozen=True)
class Fault:
    """What happens at one request."""

    error: type[StoreError] | None = None
    """None kills the process."""
    lasting: bool = False
    """Whether all later requests fail, too.  (Those of the dead always do.)"""
    done: bool = False
    """Whether it was carried out, and only the answer is lost."""
    late: int = 0
    """Carried out after so many more requests, though the answer was an error; only of changes."""
    repeated: bool = False
    """The client has sent a conditional put twice, as the first answer was lost: the second finds the first's object."""

    def exception(self) -> BaseException:
        return Killed() if self.error is None else self.error(URL, "a made error", errno.ETIMEDOUT)


class FailingRequests:
    """Lets the request of number ``at`` go wrong."""

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault = at, fault
        self.count, self.failed_in = 0, ""
        self._late: Callable[[], object] | None = None

    def __call__(self, name: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        self.count += 1
        if self._late is not None and self.count >= self.at + self.fault.late:
            self.arrive()
        if self.count == self.at:
            self.failed_in = name
            if self.fault.repeated and name == "put_new":
                call(*arguments, **named)
                return False
            if self.fault.repeated:
                return call(*arguments, **named)
            if self.fault.done:
                call(*arguments, **named)
            if self.fault.late and name in CHANGES:
                self._late = partial(call, *arguments, **named)
            raise self.fault.exception()
        if self.count > self.at and (self.fault.lasting or self.fault.error is None) and not self.fault.repeated:
            raise self.fault.exception()
        return call(*arguments, **named)

    def arrive(self) -> None:
        """Carry out the request that was under way."""
        if self._late is not None:
            late, self._late = self._late, None
            late()


WAYS: dict[str, dict[str, Fault]] = {
    "killed": {"before": Fault(), "after": Fault(done=True)},
    "error once": {"failed": Fault(StoreError), "refused": Fault(StoreRefusal)},
    "error from then on": {
        "failed": Fault(StoreError, lasting=True),
        "refused": Fault(StoreRefusal, lasting=True),
    },
    "answer lost": {
        "once": Fault(StoreError, done=True),
        "and all that follow": Fault(StoreError, done=True, lasting=True),
        "and sent again": Fault(StoreError, repeated=True),
    },
    "carried out late": {
        "after the next": Fault(StoreError, late=2),
        "after two more": Fault(StoreError, late=3),
        "at the end": Fault(StoreError, late=10**9),
        "at the end, and the store is down": Fault(StoreError, late=10**9, lasting=True),
        "of a killed process": Fault(late=10**9),
    },
}


def content(world: World) -> frozenset[tuple[ObjectUrl, bytes]]:
    """Everything in the registry except what says nothing to readers."""
    return frozenset(
        (url, data) for url, (data, _) in world.objects.items() if url.key.removeprefix(URL.key).split("/")[1] != "tmp"
    )


def seen(world: World) -> object:
    """What readers learn; AssertionError if anything is damaged.  Of worlds with the same objects only one is looked at."""
    return _seen(_Content(world))


class _Content:
    def __init__(self, world: World) -> None:
        self.world, self.key = world, content(world)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: Any) -> bool:
        return bool(self.key == other.key)


@lru_cache(maxsize=500)
def _seen(content: _Content) -> object:
    world = content.world.copy()
    registry = on(world)
    report = registry.verify()
    assert report.ok, report.findings
    models = {}
    for name in registry.names():
        versions = registry.versions(name)
        for version in versions:
            if version.aliases:
                assert len(version.read()) == version.size
        models[name] = (
            [(version.sha256, version.manifest_sha256, version.aliases) for version in versions],
            [entry.change for entry in registry.log(name)],
        )
    return models
