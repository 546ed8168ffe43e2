"""The tar of a bundle: plain ustar, of which every byte follows from the names and sizes of its members.

So a reader takes nothing from an archive but what it asked for: it knows the next member's name and size, makes the
header that must stand there and compares all of it.  Links, devices, absolute or climbing paths, owners, times, other
members, members twice or in another order: all are a header that differs.  The headers are made here, not by `tarfile`,
whose bytes have changed between versions of Python (and whose reading has to trust them); every tar program reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rankmill.foundation.errors import IntegrityError

BLOCK = 512
RECORD = 20 * BLOCK  # a tar ends with zeros, two blocks at least, up to a multiple of this
LARGEST = 8**11 - 1  # bytes of a member: eleven octal digits, 8 GiB

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
    """Reads the members that are asked for, in their order; a member is held at a time.

    Parameters
    ----------
    read
        Gives up to so many bytes from a position on; fewer only at the end of the file.
    where
        The file, for messages.
    """

    def __init__(self, read: Callable[[int, int], bytes], where: str) -> None:
        self._read, self._where = read, where
        self._position = 0

    def first(self, name: str, most: int) -> bytes:
        """Return the first member, which must be ``name`` and hold ``most`` bytes at most."""
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
        """Return the bytes of the next member, which must be ``name`` and hold ``size`` of them."""
        whole = memoryview(self._exactly(BLOCK + size + -size % BLOCK))
        if whole[:BLOCK] != header(name, size):
            raise self._fault(f"expected {name}, {size} bytes")
        if any(whole[BLOCK + size :]):
            raise self._fault("expected zeros up to the next block")
        return bytes(whole[BLOCK : BLOCK + size])

    def finish(self) -> None:
        """Read the end of the archive, and see that nothing follows."""
        if any(self._exactly(len(ending(self._position)))):
            raise self._fault("expected the end of the archive")
        if self._read(self._position, 1):
            raise self._fault("expected the end of the file")

    def _exactly(self, size: int) -> bytes:
        data = self._read(self._position, size)
        if len(data) != size:
            raise self._fault("it is cut short")
        self._position += size
        return data

    def _fault(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self._where}: the bundle is damaged near byte {self._position}: {what}")
