"""``contents.json``, the first member of a bundle: what it is a copy of, and the size of everything that follows.

The members after it are the entries of the log, byte for byte, oldest first, then the blobs in the order of their digests.
Their names in the archive follow from numbers and digests alone.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rankmill.foundation.errors import IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json
from rankmill.registry.blob_store import LARGEST_ENTRY
from rankmill.registry.bundle.tar import LARGEST, total
from rankmill.registry.manifest import Sha256, first_fault
from rankmill.registry.names import check_name
from rankmill.registry.sealed import seal, unseal

FORMAT: Final = 1
FIRST = "contents.json"
LARGEST_CONTENTS = 1 << 28  # bytes

Size = Annotated[int, Field(ge=0, le=LARGEST)]
EntrySize = Annotated[int, Field(ge=1, le=LARGEST_ENTRY)]


class Contents(BaseModel):
    """What a bundle holds: the whole history of a model, or one version with the entry that registered it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal[1]
    kind: Literal["history", "version"]
    name: str
    """What the model was called where it came from."""
    first: Annotated[int, Field(ge=1, lt=10**20)]
    """Number of the first entry that is here: 1 for a history."""
    log: Annotated[tuple[EntrySize, ...], Field(min_length=1)]
    """Sizes of the entries in bytes, oldest first."""
    head: Sha256
    """Digest of the last of them."""
    blobs: tuple[tuple[Sha256, Size], ...]
    """Digests and sizes, by digest."""

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
            It is not, byte for byte, what `to_bytes` writes; or it is of another format number.
        """
        body, unchanged = unseal("contents", data) or (b"", False)
        if not unchanged:
            raise IntegrityError(f"{where}: {FIRST} was changed after it was written")
        try:
            contents = cls.model_validate_json(body)
        except ValidationError as error:
            raise IntegrityError(
                f"{where}: not a bundle that this version of rankmill reads (format {FORMAT}): {first_fault(error)}"
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
