"""The format of bundles: a tar file that copies a model to another registry, with ``contents.json`` first.

The tar is plain ustar: the names and sizes of the members determine every byte.  A reader knows the name and size of the next
member, builds the expected header and compares all of it.  So links, devices, absolute paths, paths with "..", owners, times,
and unexpected, repeated or reordered members are all detected as a header that differs.  The headers are not made by `tarfile`,
because its bytes differ between versions of Python and its reader has to trust what it finds.  Every tar program can read them.

``contents.json`` describes the bundle and lists the sizes of the members that follow: the log entries, byte for byte, oldest
first, then the blobs, sorted by digest.  The names of members are derived from entry numbers and digests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rankmill.foundation.errors import IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json
from rankmill.registry.blob_store import LARGEST_ENTRY
from rankmill.registry.names import check_name
from rankmill.registry.rendering import author_text
from rankmill.registry.stored_records import Entry, Number, Sha256, StoredRecord, first_fault, seal, unseal

BLOCK = 512
RECORD = 20 * BLOCK  # a tar ends with at least two blocks of zeros and is padded to a multiple of this
LARGEST = 8**11 - 1  # bytes in a member: eleven octal digits, 8 GiB

_SIZE = slice(124, 135)


def header(name: str, size: int) -> bytes:
    """Return the block before a regular, read-only file of ``size`` bytes without owner and time."""
    before = b"".join(
        [
            name.encode("ascii").ljust(100, b"\0"),
            b"0000444\0" + b"0000000\0" * 2,  # mode, user, group
            b"%011o\0" % size,
            b"%011o\0" % 0,  # time
        ]
    )
    after = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
    return before + b"%06o\0 " % (sum(before) + sum(after) + 8 * ord(" ")) + after


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a member."""
    return bytes(-size % BLOCK)


def ending(position: int) -> bytes:
    """Return the zeros after the last member, which ends at ``position``."""
    return bytes(2 * BLOCK + -(position + 2 * BLOCK) % RECORD)


def total(sizes: Iterable[int]) -> int:
    """Return the size of a tar whose members have these sizes."""
    members = sum(BLOCK + size + -size % BLOCK for size in sizes)
    return members + len(ending(members))


class TarReader:
    """Reads the expected members in order and holds one in memory at a time.

    Parameters
    ----------
    read
        ``read(position, size)`` returns ``size`` bytes, or fewer at the end of the file.
    where
        The file, for error messages.
    """

    def __init__(self, read: Callable[[int, int], bytes], where: str) -> None:
        self._read, self._where = read, where
        self._position = 0

    def first(self, name: str, most: int) -> bytes:
        """Return the first member, which must be called ``name`` and have at most ``most`` bytes."""
        block = self._read(self._position, BLOCK)
        digits = block[_SIZE]
        octal = len(digits) == 11 and all(ord("0") <= digit <= ord("7") for digit in digits)
        size = int(digits, 8) if octal else 0
        if not octal or block != header(name, size):
            raise IntegrityError(f"{self._where}: not a bundle of rankmill: it does not begin with {name}")
        if size > most:
            raise IntegrityError(f"{self._where}: {name} has {size} bytes, expected at most {most}")
        return self.member(name, size)

    def member(self, name: str, size: int) -> bytes:
        """Return the next member, which must be called ``name`` and have ``size`` bytes."""
        whole = memoryview(self._exactly(BLOCK + size + -size % BLOCK))
        if whole[:BLOCK] != header(name, size):
            raise self._fault(f"expected {name}, {size} bytes")
        if any(whole[BLOCK + size :]):
            raise self._fault("expected zeros up to the next block")
        return bytes(whole[BLOCK : BLOCK + size])

    def finish(self) -> None:
        """Read the end of the archive and check that nothing follows."""
        if any(self._exactly(len(ending(self._position)))):
            raise self._fault("expected the end of the archive")
        if self._read(self._position, 1):
            raise self._fault("expected the end of the file")

    def _exactly(self, size: int) -> bytes:
        data = self._read(self._position, size)
        if len(data) != size:
            raise self._fault("it is truncated")
        self._position += size
        return data

    def _fault(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self._where}: the bundle is damaged near byte {self._position}: {what}")


FORMAT: Final = 1
FIRST = "contents.json"
LARGEST_CONTENTS = 1 << 28  # bytes

Size = Annotated[int, Field(ge=0, le=LARGEST)]
EntrySize = Annotated[int, Field(ge=1, le=LARGEST_ENTRY)]


class Contents(BaseModel):
    """Description of a bundle: the whole history of a model, or one version with the entry that registered it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal[1]
    kind: Literal["history", "version"]
    name: str
    """Name of the model in the registry of origin."""
    first: Annotated[int, Field(ge=1, lt=10**20)]
    """Number of the first entry in the bundle; 1 for a history."""
    log: Annotated[tuple[EntrySize, ...], Field(min_length=1)]
    """Sizes of the entries in bytes, oldest first."""
    head: Sha256
    """Digest of the last entry."""
    blobs: tuple[tuple[Sha256, Size], ...]
    """Digests and sizes, sorted by digest."""

    def entry_member(self, index: int) -> str:
        """Name of the member with entry ``index`` of ``log``."""
        return f"log/{self.first + index:020d}.json"

    def to_bytes(self) -> bytes:
        """Return the member."""
        return seal("contents", canonical_json(self.model_dump(mode="json")))

    @property
    def size(self) -> int:
        """Size of the whole bundle in bytes."""
        return total([len(self.to_bytes()), *self.log, *(size for _, size in self.blobs)])

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Contents:
        """Read the member.

        Raises
        ------
        IntegrityError
            The bytes are not exactly what `to_bytes` writes, or the format number is unknown.
        """
        body, unchanged = unseal("contents", data) or (b"", False)
        if not unchanged:
            raise IntegrityError(f"{where}: {FIRST} was changed after it was written")
        try:
            contents = cls.model_validate_json(body)
        except ValidationError as error:
            raise IntegrityError(
                f"{where}: this version of rankmill cannot read this bundle (it reads format {FORMAT}): {first_fault(error)}"
            ) from None
        try:
            check_name(contents.name)
        except InvalidName as error:
            raise IntegrityError(f"{where}: {error}") from None
        digests = [sha256 for sha256, _ in contents.blobs]
        whole = contents.kind == "version" or contents.first == 1
        if contents.to_bytes() != data or sorted(set(digests)) != digests or not whole:
            raise IntegrityError(f"{where}: {FIRST} was not written by rankmill")
        return contents


def blob_member(sha256: str) -> str:
    """Name of the member with the blob of this digest."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}"


ORIGIN = "origin"


class Origin(StoredRecord):
    """The registry entry from which a version was imported; ``before`` is the origin of that version, if it was imported too."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str
    version: Number
    entry: Entry
    """The entry that registered it there."""
    sha256: Sha256
    before: Origin | None = None

    @classmethod
    def of(cls, data: bytes | None) -> Origin | None:
        """Read the attachment; None if it is missing or something else."""
        try:
            return None if data is None else cls.model_validate_json(data)
        except ValidationError:
            return None

    def lines(self) -> list[str]:
        """Describe the origins, the latest first."""
        line = f"{self.name}@{self.version}, registered {author_text(self.entry)}"
        return [line, *([] if self.before is None else self.before.lines())]


def origin_bytes(name: str, version: int, entry: Entry, earlier: bytes | None) -> bytes:
    """Return the attachment for ``version`` of model ``name``, registered by ``entry`` with the attachment ``earlier``."""
    facts = {"name": name, "version": version, "entry": entry.to_json(), "sha256": entry.digest}
    return canonical_json(facts if earlier is None else facts | {"before": json.loads(earlier)})
