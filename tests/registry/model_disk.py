"""A file system in memory that separates what stable storage holds from what programs see.

A file's bytes are safe after fsync of the file, a name after fsync of its folder, and nothing else makes anything safe.
When power is lost, each unsafe name falls back to any of the things it meant since it was last safe, and each unsafe
file to any torn form of itself, one independently of the other, as ALICE (Pillai et al., OSDI 2014) found that file
systems do.  A rename alone is one step: where the old name is gone, the new one is there.
"""

from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rankmill.foundation.storage.disk import Disk

ROOT = Path("/srv/models/registry")
"""Where tests keep a registry on a machine, in a folder that is not there yet; nor is it on the real one, so that a call
past the model fails."""

BEHIND = 2 * 3600.0
"""Seconds by which the clock of a machine is behind the real one.  Machines are cached for all tests of a process and their
clock stands still, so it falls behind anyway.  The gap makes a test that mixes the two clocks fail always, not only when the
tests before it took long."""


@dataclass(eq=False, slots=True)
class File:
    data: bytes
    """What programs read."""
    safe: bytes
    """What is on stable storage for certain."""
    written: float
    links: int = 0
    """How many names it has."""

    def forms(self) -> list[bytes]:
        """What may be found after a loss of power, from nothing new to all of it."""
        if self.data == self.safe:
            return [self.data]
        torn = [self.data[: len(self.data) // 2], bytes(len(self.data)), self.data[:-1]]
        return [self.safe, *torn, self.data]


@dataclass(eq=False, slots=True)
class Folder:
    names: dict[str, Node] = field(default_factory=dict)
    """What programs see."""
    meant: dict[str, list[Meaning]] = field(default_factory=dict)
    """For each name that is not safe what it meant, oldest first: the first is safe, the last is seen."""

    def show(self, name: str, node: Node | None) -> None:
        before = self.names.pop(name, None)
        if isinstance(before, File):
            before.links -= 1
        if node is not None:
            self.names[name] = node
        if isinstance(node, File):
            node.links += 1


Node = File | Folder


@dataclass(eq=False, slots=True)
class Meaning:
    """What one name meant at one time; None where it was free."""

    folder: Folder
    name: str
    node: Node | None

    def index(self) -> int:
        """How many meanings ago counted from the safe one; 0 also for what was made safe since."""
        meant = self.folder.meant.get(self.name, [])
        return meant.index(self) if self in meant else 0


class Rename(NamedTuple):
    """The old name may be free on stable storage only where the new one is there."""

    free: Meaning
    there: Meaning


class Choice(NamedTuple):
    """Something that power loss decides: which of ``options`` is found; the first is what was safe, the last what was
    seen."""

    options: int
    what: str


Chooser = Callable[[Choice], int]


def nothing_new(choice: Choice) -> int:
    """Whatever is not safe is lost."""
    return 0


def everything(choice: Choice) -> int:
    """Nothing is lost."""
    return choice.options - 1


class Machine:
    """What all programs on one machine share: its files.  `power_loss` is the end of all of them."""

    def __init__(self) -> None:
        self.root = Folder()
        self.renames: list[Rename] = []
        self.now = time.time() // 1.0 - BEHIND
        """What the clock says that dates files; it moves when it is asked to."""
        self.root.names["srv"] = Folder()

    def copy(self) -> Machine:
        return self.from_bytes(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Machine:
        copied: Machine = pickle.loads(data)
        return copied

    def to_bytes(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    def folder(self, path: Path) -> Folder:
        node = self.find(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def find(self, path: Path) -> Node:
        node: Node = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                raise _error(errno.ENOTDIR, path)
            if part not in node.names:
                raise _error(errno.ENOENT, path)
            node = node.names[part]
        return node

    def set(self, path: Path, node: Node | None) -> Meaning:
        """Let a name mean something else from now on, which is not safe yet."""
        folder, name = self.folder(path.parent), path.name
        now = Meaning(folder, name, node)
        folder.meant.setdefault(name, [Meaning(folder, name, folder.names.get(name))]).append(now)
        folder.show(name, node)
        return now

    def fsync(self, folder: Folder) -> None:
        """Make the names of ``folder`` safe, and the new names of what was moved out of it."""
        folder.meant.clear()
        for rename in self.renames:
            if rename.free.folder is folder:  # a rename is one step
                there = rename.there
                del there.folder.meant.get(there.name, [])[: there.index()]
        self.renames = [r for r in self.renames if folder not in (r.free.folder, r.there.folder)]

    def choices(self) -> list[Choice]:
        """What a loss of power would decide now, in the order in which it asks."""
        asked: list[Choice] = []

        def ask(choice: Choice) -> int:
            asked.append(choice)
            return choice.options - 1

        self.copy().power_loss(ask)
        return asked

    def power_loss(self, choose: Chooser = nothing_new) -> None:
        """Forget what ``choose`` says of what is not safe."""
        folders = list(self._folders(self.root, "", set()))
        picked: dict[tuple[Folder, str], int] = {}
        for path, folder in folders:
            for name, meant in sorted(folder.meant.items()):
                choice = Choice(len(meant), f"the name {path}/{name}")
                picked[folder, name] = choose(choice) if choice.options > 1 else 0
        for free, there in reversed(self.renames):
            old, new = (free.folder, free.name), (there.folder, there.name)
            if old in picked and picked.get(new, there.index()) < there.index():
                picked[old] = min(picked[old], free.index() - 1)
        for (folder, name), pick in picked.items():
            folder.show(name, folder.meant[name][pick].node)
        for _, folder in folders:
            folder.meant = {}
        self.renames = []
        for path, file in dict(self.files()).items():
            forms = file.forms()
            if len(forms) > 1:
                file.data = forms[choose(Choice(len(forms), f"the bytes of {path}"))]
                file.safe = file.data

    def files(self, below: Path = Path("/")) -> Iterator[tuple[str, File]]:
        """Everything that programs see, by path; a file of two names once for each."""
        left = [(str(below).rstrip("/"), self.folder(below))]
        while left:
            path, folder = left.pop()
            for name, node in folder.names.items():
                if isinstance(node, File):
                    yield f"{path}/{name}", node
                else:
                    left.append((f"{path}/{name}", node))

    def _folders(self, folder: Folder, path: str, been: set[Folder]) -> Iterator[tuple[str, Folder]]:
        been.add(folder)
        yield path, folder
        nodes = list(folder.names.items())
        nodes += [(name, meaning.node) for name, meant in folder.meant.items() for meaning in meant]
        for name, node in nodes:
            if isinstance(node, Folder) and node not in been:
                yield from self._folders(node, f"{path}/{name}", been)


class ModelDisk(Disk):
    """One program's way to the files of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._open: dict[int, File] = {}
        self._at: dict[int, int] = {}
        self._opened = 0

    def read(self, path: Path, limit: int = -1) -> bytes:
        node = self.machine.find(path)
        if isinstance(node, Folder):
            raise _error(errno.EINVAL, path)
        return node.data if limit < 0 else node.data[:limit]

    def names(self, folder: Path) -> list[str]:
        try:
            return sorted(self.machine.folder(folder).names)
        except FileNotFoundError:
            return []

    def is_folder(self, path: Path) -> bool:
        try:
            return isinstance(self.machine.find(path), Folder)
        except OSError:
            return False

    def is_link(self, path: Path) -> bool:
        return False

    def size(self, path: Path) -> int:
        node = self.machine.find(path)
        return len(node.data) if isinstance(node, File) else 0

    def modified(self, path: Path) -> float:
        node = self.machine.find(path)
        return node.written if isinstance(node, File) else self.machine.now

    def make_folder(self, folder: Path, mode: int = 0o777) -> None:
        self._expect_free(folder)
        self.machine.set(folder, Folder())

    def create(self, path: Path, mode: int = 0o444) -> int:
        self._expect_free(path)
        file = File(b"", b"", self.machine.now)
        self.machine.set(path, file)
        self._opened += 1
        self._open[self._opened], self._at[self._opened] = file, 0
        return self._opened

    def allocate(self, descriptor: int, size: int) -> None:
        file = self._open[descriptor]
        file.data += bytes(max(0, size - len(file.data)))

    def write(self, descriptor: int, data: memoryview) -> int:
        file, at = self._open[descriptor], self._at[descriptor]
        file.data = file.data[:at] + bytes(data) + file.data[at + len(data) :]
        self._at[descriptor] += len(data)
        return len(data)

    def fsync(self, descriptor: int) -> None:
        file = self._open[descriptor]
        file.safe = file.data

    def lock(self, path: Path, how: int) -> int:
        """Nobody else is at work: waiting for others is tried with processes."""
        self.machine.folder(path.parent)
        return -1

    def close(self, descriptor: int) -> None:
        if descriptor > 0:
            del self._open[descriptor]

    def link(self, source: Path, target: Path) -> None:
        node = self.machine.find(source)
        self._expect_free(target)
        self.machine.set(target, node)

    def unlink(self, path: Path) -> None:
        if isinstance(self.machine.find(path), Folder):
            raise _error(errno.EISDIR, path)
        self.machine.set(path, None)

    def replace(self, source: Path, target: Path) -> None:
        self._rename(source, target)

    def remove_folder(self, folder: Path) -> None:
        if self.machine.folder(folder).names:
            raise _error(errno.ENOTEMPTY, folder)
        self.machine.set(folder, None)

    def fsync_folder(self, folder: Path) -> None:
        self.machine.fsync(self.machine.folder(folder))

    def _expect_free(self, path: Path) -> None:
        if path.name in self.machine.folder(path.parent).names:
            raise _error(errno.EEXIST, path)

    def _rename(self, source: Path, target: Path) -> None:
        there = self.machine.set(target, self.machine.find(source))
        self.machine.renames.append(Rename(self.machine.set(source, None), there))


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
