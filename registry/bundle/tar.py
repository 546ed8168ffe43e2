"""The tar of a bundle: plain ustar, of which every byte follows from the names and sizes of its members.

So a reader takes nothing from an archive but what it asked for: it knows the next member's name and size, builds the
header that must stand there and compares all of it.  Links, devices, absolute or climbing paths, owners, times, other
members, members twice or in another order: all are a header that differs.  The headers are made here, not by `tarfile`,
whose bytes have changed between versions of Python (and whose reading has to trust them); every tar program reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from registry.errors import IntegrityError

BLOCK = 512
RECORD = 20 * BLOCK  # a tar ends with zeros, two blocks at least, up to a multiple of this
LARGEST = 8**11 - 1  # bytes of a member: eleven octal digits, 8 GiB
CHUNK = 1 << 20  # bytes held at a time

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


def total(sizes: list[int]) -> int:
    """Return the size of a tar whose members have these sizes."""
    members = sum(BLOCK + size + -size % BLOCK for size in sizes)
    return members + len(ending(members))


class TarReader:
    """Reads the members that are asked for, in their order, in bounded memory.

    Parameters
    ----------
    read
        Gives so many bytes at most; none at the end of the file.
    where
        The file, for messages.
    """

    def __init__(self, read: Callable[[int], bytes], where: str) -> None:
        self._read, self._where = read, where
        self._position = 0

    def size_of_first(self, name: str, most: int) -> int:
        """Return the size of the first member, which must be ``name`` and hold ``most`` bytes at most."""
        block = self._exactly(BLOCK)
        digits = block[_SIZE]
        if not digits.isdigit() or any(digit > ord("7") for digit in digits) or block != header(name, int(digits, 8)):
            raise IntegrityError(f"{self._where}: not a bundle of rankmill: it does not begin with {name}")
        if (size := int(digits, 8)) > most:
            raise IntegrityError(f"{self._where}: {name} has {size} bytes, expected at most {most}")
        return size

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of the next member, which must be ``name`` and hold ``size`` bytes."""
        if self._exactly(BLOCK) != header(name, size):
            raise self._fault(f"expected the header of {name}, {size} bytes")
        yield from self.bytes_of_first(size)

    def bytes_of_first(self, size: int) -> Iterator[bytes]:
        """Yield the bytes of the member whose header was read."""
        rest = size
        while rest:
            chunk = self._exactly(min(rest, CHUNK))
            rest -= len(chunk)
            yield chunk
        if any(self._exactly(-size % BLOCK)):
            raise self._fault("expected zeros up to the next block")

    def finish(self) -> None:
        """Read the end of the archive, and see that nothing follows."""
        if any(self._exactly(len(ending(self._position)))):
            raise self._fault("expected the end of the archive")
        if self._read(1):
            raise self._fault("expected the end of the file")

    def _exactly(self, size: int) -> bytes:
        parts, rest = [], size
        while rest:
            part = self._read(rest)
            if not part:
                raise self._fault("the file is cut short")
            parts.append(part)
            rest -= len(part)
        self._position += size
        return b"".join(parts)

    def _fault(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self._where}: the bundle is damaged near byte {self._position}: {what}")
