"""What the tests of failure do to a registry, one line each."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from rankmill.registry.stored_records import AliasPolicy, Entry, manifest_bytes
from tests.registry.conftest import FACTS, outcome
from tests.registry.model_disk import ROOT, Machine, ModelDisk

AT_ONCE = RetentionRules(keep=1, grace=0.0)

Work = Callable[[Registry, str], Entry | None]
"""Does it, for the reason given; the entry that was committed or found to stand already, if there is one."""


@dataclass(frozen=True)
class Operation:
    work: Work
    start: str = "three versions"
    """What was there before; a name of `STARTS`."""
    model: str = "web"
    """Whose log it extends."""
    repeats: bool = True
    """Whether doing it twice is doing it once."""
    steps: bool = False
    """Whether it makes more than one commit, so that something in between may be found."""
    thorough: bool = False
    """Whether it meets every error in the ordinary tests, too."""


def register(name: str, model: bytes, **facts: object) -> Work:
    return lambda r, why: r.register(name, model, manifest=FACTS | facts, reason=why).registered


def gate(version: int, alias: str, baseline: int | None) -> Work:
    return lambda r, why: r.record_gate(
        "web", outcome(version, alias=alias, baseline=baseline), {"delta": 0.5}, reason=why
    )


def three_versions(registry: Registry) -> None:
    """Three versions of ``web``; production went 1, 2, 3; shadow is 1; guarded is 1, and 2 may follow."""
    registry.prepare(protected=())
    for number in (1, 2, 3):
        registry.register("web", b"model %d" % number, manifest=FACTS | {"best_round": number})
        registry.promote("web", number)
    registry.promote("web", 1, alias="shadow")
    registry.promote("web", 1, alias="guarded")
    registry.protect("web", "guarded", AliasPolicy())
    gate(2, "guarded", baseline=1)(registry, "")


def one_is_to_go(registry: Registry) -> None:
    """Besides, two versions that no alias means; the first is to go at once."""
    three_versions(registry)
    for number in (4, 5):
        registry.register("web", b"model %d" % number, manifest=FACTS | {"best_round": number})


def one_is_nobodys(registry: Registry) -> None:
    """The bytes and facts of what will be version 4 are there, and no entry refers to them: their writer was killed."""
    three_versions(registry)
    blobs = CommitLog(registry._store, "web").blobs
    for data in (b"model 4", manifest_bytes(FACTS)):
        blobs.put(data)


def collect(times: int) -> Work:
    def work(registry: Registry, why: str) -> None:
        for _ in range(times):
            registry.gc(rules=AT_ONCE)

    return work


@cache
def bundles() -> Path:
    """A folder with bundles of one model: its history, that with an entry more, and its one version."""
    folder = Path(tempfile.mkdtemp(prefix="bundles-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    registry = Registry(ROOT, disk=ModelDisk(Machine()))
    registry.register("web", b"model", manifest=FACTS)
    registry.promote("web", 1, alias="shadow")
    registry.export("web", folder / "history.tar")
    registry.export("web@1", folder / "version.tar")
    registry.promote("web", 1, alias="canary")
    registry.export("web", folder / "longer.tar")
    return folder


def behind(registry: Registry) -> None:
    """What a bundle held before it got another entry."""
    registry.prepare(protected=())
    registry.import_(bundles() / "history.tar", move_aliases=True)


def import_(name: str) -> Work:
    def work(registry: Registry, why: str) -> Entry:
        done = registry.import_(bundles() / f"{name}.tar", reason=why, move_aliases=True)
        return registry.log(done.name)[done.head - 1]

    return work


def promote_what_is_there(registry: Registry, why: str) -> Entry | None:
    """What another process may do before an import has come to its end."""
    if "web" not in registry.names():
        return import_("history")(registry, why)
    return registry.promote("web", 1, alias="canary", reason=why)


STARTS: dict[str, Callable[[Registry], object]] = {
    "nothing": lambda r: None,
    "three versions": three_versions,
    "one is to go": one_is_to_go,
    "one is nobody's": one_is_nobodys,
    "an empty registry": lambda r: r.prepare(protected=()),
    "one behind": behind,
}
OPERATIONS: dict[str, Operation] = {
    "register the first": Operation(register("shop", b"shop 1"), start="nothing", model="shop", thorough=True),
    "register another name": Operation(register("shop", b"shop 1"), model="shop"),
    "register another": Operation(register("web", b"model 4"), thorough=True),
    "register the same model with other facts": Operation(register("web", b"model 3")),
    "register what is there": Operation(register("web", b"model 2", best_round=2)),
    "promote": Operation(lambda r, why: r.promote("web", 2, reason=why), thorough=True),
    "promote as expected": Operation(lambda r, why: r.promote("web", 2, expect=3, reason=why), repeats=False),
    "promote a new alias": Operation(lambda r, why: r.promote("web", 2, alias="canary", reason=why)),
    "promote what stands": Operation(lambda r, why: r.promote("web", 3, reason=why)),
    "roll back": Operation(lambda r, why: r.rollback("web", expect=3, reason=why), repeats=False, thorough=True),
    "roll back to": Operation(lambda r, why: r.rollback("web", to=1, reason=why)),
    "unset": Operation(lambda r, why: r.unset("web", "shadow", reason=why)),
    "protect": Operation(lambda r, why: r.protect("web", "shadow", AliasPolicy(metric="ndcg@10"), reason=why)),
    "open": Operation(lambda r, why: r.protect("web", "guarded", None, reason=why)),
    "record a gate": Operation(gate(2, "production", baseline=3)),
    "promote through the gate": Operation(lambda r, why: r.promote("web", 2, alias="guarded", reason=why)),
    "promote by force": Operation(lambda r, why: r.promote("web", 3, alias="guarded", force=True, reason=why)),
    "import a history": Operation(import_("history"), start="an empty registry"),
    "import what follows": Operation(import_("longer"), start="one behind"),
    "import what is there": Operation(import_("history"), start="one behind"),
    "import the first version": Operation(import_("version"), start="an empty registry"),
    "import another version": Operation(import_("version")),
    "promote what was imported": Operation(promote_what_is_there, start="one behind"),
}
COLLECTIONS: dict[str, Operation] = {
    "collect": Operation(collect(1), start="one is to go", steps=True),
    "collect twice": Operation(collect(2), start="one is to go", steps=True),
    "collect what is nobody's": Operation(collect(1), start="one is nobody's", steps=True),
    "register what is nobody's": Operation(register("web", b"model 4"), start="one is nobody's"),
}


@cache
def started(start: str) -> Machine:
    """A machine on which all that was done before is safe; copy it."""
    machine = Machine()
    STARTS[start](Registry(ROOT, disk=ModelDisk(machine)))
    machine.power_loss()
    return machine
