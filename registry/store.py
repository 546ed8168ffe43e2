"""The folder on disk: its format number, immutable blobs named by digest, and the one way in which a file appears.

::

    ROOT/FORMAT.json                 see ``registry.format``; written once, before anything else
         blobs/sha256/ab/<64 hex>    read-only; model bytes and manifests alike
         models/<name>/log/          see ``registry.log``
         tmp/                        files on their way in; what a crash leaves here is swept after a day

A file is written under ``tmp/``, flushed, and gets its real name by link(2), which fails if the name is taken: there
is no moment at which half a file can be seen, and of two writers one wins.  Nothing is ever replaced.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from registry.disk import Disk
from registry.errors import InputError, IntegrityError
from registry.format import Format
from registry.names import PRODUCTION

SWEEP_AFTER = 24 * 3600.0  # seconds; a file is staged for moments, so whatever is older belongs to the dead
OURS = {"FORMAT.json", "blobs", "models", "tmp", "lost+found"}  # the last one: root of a freshly made volume
NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


class Store:
    """Blobs and put-if-absent below ``root``.  Readers write nothing; the folder is made by the first writer."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or Disk()
        self._tmp = root / "tmp"
        self._format: Format | None = None

    def exists(self) -> bool:
        """Whether a registry of our format is here.

        Raises
        ------
        IntegrityError
            One is here, but of another format number, or its ``FORMAT.json`` is damaged or gone.
        """
        if self._format is not None:
            return True
        path = self.root / "FORMAT.json"
        inhabited = "models" in self.disk.names(self.root)  # asked first: FORMAT.json comes before models
        try:
            data = self.disk.read(path)
        except FileNotFoundError:
            if inhabited:
                raise IntegrityError(f"{path} is missing, but models are here; restore it from a backup") from None
            return False
        try:
            self._format = Format.from_bytes(data)
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {error}") from None
        return True

    @property
    def protected(self) -> tuple[str, ...]:
        """The aliases that only a passed gate moves forward, as agreed when the registry was made; none in format 1."""
        self.exists()
        return () if self._format is None else self._format.protected

    def prepare(self, protected: Iterable[str] = (PRODUCTION,)) -> None:
        """Make the registry, where only passed gates promote to ``protected``, if it is not here yet.

        Raises
        ------
        InputError
            The folder holds something else.
        """
        if self.exists():
            return
        data = Format.new(protected).to_bytes()
        if foreign := [n for n in self.disk.names(self.root) if n not in OURS and not n.startswith(".")]:
            raise InputError(f"{self.root} is no registry and holds {foreign[0]!r}; name an empty or a new folder")
        root = self.root.absolute()
        above = next((folder for folder in root.parents if self.disk.is_folder(folder)), root)
        try:
            self.make_folders(root, above)
        except PermissionError:
            if not self.disk.is_folder(root):  # the parent of a mounted volume need not be ours to open
                raise
        for folder in above.parents:  # who made them may have been killed before they were on stable storage
            with contextlib.suppress(OSError):
                self.disk.fsync_folder(folder)
        self.put_if_absent(self.root / "FORMAT.json", data)
        self.exists()  # another writer may have made one with other rules meanwhile: those stand

    def put_if_absent(self, target: Path, data: bytes) -> bool:
        """Publish ``data`` at ``target``, durably, unless the name is taken; return whether it now holds ``data``.

        The folder of ``target`` must be there.  After an exception the target is either absent or whole.
        """
        if not self.disk.is_folder(self._tmp):
            self.make_folders(self._tmp)
        staged = self._tmp / f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"
        try:
            self._stage(staged, data)
            held = self._link(staged, target) or self.disk.read(target) == data
        finally:
            with contextlib.suppress(OSError):  # what cannot be removed now is swept later
                self.disk.unlink(staged)
        self.disk.fsync_folder(target.parent)  # also for a name that somebody else has just made: we rely on it
        return held

    def replace(self, target: Path, data: bytes) -> None:
        """Put ``data`` in the place of ``target`` in one step, but not durably: for what may be lost or torn."""
        staged = self._tmp / f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"
        try:
            descriptor = self.disk.create(staged)
            try:
                self._write(descriptor, data)
            finally:
                self.disk.close(descriptor)
            self.disk.replace(staged, target)
        except OSError:
            with contextlib.suppress(OSError):
                self.disk.unlink(staged)
            raise

    def blob_path(self, sha256: str) -> Path:
        """Where the blob of this digest lies, or would lie."""
        return self.root / "blobs" / "sha256" / sha256[:2] / sha256

    def put_blob(self, data: bytes) -> str:
        """Keep ``data`` and return its sha256; writes nothing if the blob is here already.

        Raises
        ------
        IntegrityError
            A blob of this digest is here and holds other bytes.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.blob_path(sha256)
        try:
            held = self.disk.read(path) == data
            self.disk.fsync_folder(path.parent)  # whoever linked it may not have come so far yet
        except FileNotFoundError:
            self.make_folders(path.parent)
            held = self.put_if_absent(path, data)
        if not held:
            raise _damaged(path)
        return sha256

    def read_blob(self, sha256: str) -> bytes:
        """Return the bytes of this digest, checked.

        Raises
        ------
        IntegrityError
            The blob is missing, or its bytes have another digest.
        """
        path = self.blob_path(sha256)
        try:
            data = self.disk.read(path)
        except FileNotFoundError:
            raise IntegrityError(f"{path}: the blob is missing; restore it from a backup") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise _damaged(path)
        return data

    def make_folders(self, folder: Path, above: Path | None = None) -> None:
        """Make the folders from below ``above`` (the root) down to ``folder``; durable on return, whoever made them."""
        above = above or self.root
        for part in [part for part in (*reversed(folder.parents), folder) if above in part.parents]:
            with contextlib.suppress(FileExistsError):
                self.disk.make_folder(part)
            self.disk.fsync_folder(part.parent)  # also where it stands: its maker may not have come so far yet

    def sweep(self) -> None:
        """Remove what writers that died have left in ``tmp/``; best effort."""
        with contextlib.suppress(OSError):
            for name in self.disk.names(self._tmp):
                if time.time() - self.disk.modified(self._tmp / name) > SWEEP_AFTER:
                    self.disk.unlink(self._tmp / name)

    def _stage(self, staged: Path, data: bytes) -> None:
        descriptor = self.disk.create(staged)
        try:
            self._write(descriptor, data)
            self.disk.fsync(descriptor)
        finally:
            self.disk.close(descriptor)

    def _write(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.disk.write(descriptor, rest) :]

    def _link(self, staged: Path, target: Path) -> bool:
        try:
            self.disk.link(staged, target)
        except FileExistsError:
            return False
        except OSError as error:
            if self.disk.link_count(staged) == 2:  # NFS: done, only the answer was lost
                return True
            if error.errno in NO_HARD_LINKS:
                reason = "no hard links here, and the registry commits with them; keep it on a local disk or NFS"
                raise OSError(error.errno, reason, str(target)) from error
            raise
        return True


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(f"{path}: the bytes do not have the digest that names them; restore it from a backup")
