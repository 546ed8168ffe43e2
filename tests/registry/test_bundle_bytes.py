"""Whatever a bundle's file holds, it is taken in as it was written, or refused by name with nothing changed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import InputError, IntegrityError, RankmillError
from rankmill.foundation.records import canonical_json
from rankmill.registry import bundle_format as bundle_tar
from rankmill.registry.bundle_format import blob_member
from rankmill.registry.bundle_import import OpenedBundle
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import GENESIS
from rankmill.registry.stored_records import AliasPolicy, Entry, Move, Protect, Register, Tag
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk

Parts = list[tuple[str, bytes]]


class FileInMemory(QuickDisk):
    """A disk with one file, so that hundreds of thousands of damaged ones need no disk."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def is_folder(self, path: Path) -> bool:
        return False

    def size(self, path: Path) -> int:
        return len(self.data)

    def mode(self, path: Path) -> int:
        return stat.S_IFREG

    def read_part(self, path: Path, start: int, size: int) -> bytes:
        assert size <= len(self.data) + 1024, "asks for more memory than the file has bytes"
        return self.data[start : start + size]


def is_refused(data: bytes) -> bool:
    """Whether the bytes are refused, and that in one line that names the file."""
    line = ""
    try:
        OpenedBundle(FileInMemory(data), Path("some.tar"))
    except IntegrityError as error:
        line = str(error)
    assert line.isprintable()
    assert line.startswith("some.tar: ") or not line
    return bool(line)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A history of a registration and a promotion, and the version of it."""
    place = tmp_path_factory.mktemp("small")
    registry = Registry(place / "r", disk=QuickDisk())
    registry.register("web", b"model", manifest=FACTS, attachments={"notes": b""})
    registry.promote("web", 1, alias="blue")
    registry.export("web", place / "history.tar")
    registry.export("web@1", place / "version.tar")
    return {kind: (place / f"{kind}.tar").read_bytes() for kind in ("history", "version")}


def flip(whole: bytes, masks: Callable[[int], list[int]]) -> None:
    data = bytearray(whole)
    assert not is_refused(whole)
    for i in range(len(data)):
        for mask in masks(i):
            data[i] ^= mask
            assert is_refused(bytes(data)), (i, mask)
            data[i] ^= mask


@pytest.mark.parametrize("kind", ["history", "version"])
def test_every_flipped_byte_is_refused(small: dict[str, bytes], kind: str) -> None:
    flip(small[kind], lambda i: [1 << i % 8])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["history", "version"])
def test_every_flipped_bit_is_refused(small: dict[str, bytes], kind: str) -> None:
    flip(small[kind], lambda i: [1 << bit for bit in range(8)])


@pytest.mark.parametrize("kind", ["history", "version"])
def test_every_truncation_and_every_extension_is_refused(small: dict[str, bytes], kind: str) -> None:
    data = small[kind]
    for i in range(len(data)):
        assert is_refused(data[:i])
    for more in (b"\0", b"\n", bytes(512), bytes(10240), data):
        assert is_refused(data + more)
        assert is_refused(more + data)


def test_a_compressed_bundle_is_refused(small: dict[str, bytes]) -> None:
    assert is_refused(gzip.compress(small["history"]))
    assert is_refused(gzip.compress(bytes(1 << 20)))


# ---- bundles of a forger, who seals every digest again ---------------------------------------------------------------


def packed(parts: Parts) -> bytes:
    out = b"".join(bundle_tar.header(name, len(data)) + data + bundle_tar.padding(len(data)) for name, data in parts)
    return out + bundle_tar.ending(len(out))


def sealed(contents: dict[str, Any]) -> bytes:
    body = canonical_json(contents)
    return b'{"contents":%b,"sha256":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def taken_apart(data: bytes) -> tuple[dict[str, Any], Parts]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        parts = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    return json.loads(parts[0][1])["contents"], parts[1:]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": True},
        {"format": 1.0},
        {"kind": "other"},
        {"kind": "version"},
        {"name": "../web"},
        {"name": "Web"},
        {"name": "web\n"},
        {"name": ""},
        {"name": "a" * 65},
        {"name": "web.rankmill"},
        {"first": 2},
        {"first": 0},
        {"first": 10**30},
        {"first": 1.0},
        {"log": []},
        {"log": [2**63, 1]},
        {"log": [-1, 1]},
        {"log": [0, 0]},
        {"log": [True, True]},
        {"log": ["../x", 1]},
        {"head": "0" * 64},
        {"head": "../../x"},
        {"blobs": []},
        {"extra": 1},
        {"name": None},
    ],
    ids=str,
)
def test_contents_that_lie_are_refused(small: dict[str, bytes], change: dict[str, Any]) -> None:
    contents, parts = taken_apart(small["history"])
    assert packed([("contents.json", sealed(contents)), *parts]) == small["history"]
    changed = {key: value for key, value in (contents | change).items() if value is not None}
    assert is_refused(packed([("contents.json", sealed(changed)), *parts]))


def test_blobs_that_lie_are_refused(small: dict[str, bytes]) -> None:
    contents, parts = taken_apart(small["history"])
    blobs = contents["blobs"]
    empty = hashlib.sha256(b"").hexdigest()
    for wrong in (
        blobs[:-1],
        [*blobs, blobs[-1]],
        blobs[::-1],
        sorted([*blobs, ["0" * 64, 0]]),
        [[sha, size + 1] for sha, size in blobs],
        [[sha, 2**63] for sha, size in blobs],
        [[sha, -1] for sha, size in blobs],
        [[sha.upper(), size] for sha, size in blobs],
        [["../" + sha[3:], size] for sha, size in blobs],
        [[sha, size, 0] for sha, size in blobs],
    ):
        assert is_refused(packed([("contents.json", sealed(contents | {"blobs": wrong})), *parts]))
    more = sorted([*blobs, [hashlib.sha256(b"x").hexdigest(), 1]])
    members = sorted([*parts[2:], (blob_member(hashlib.sha256(b"x").hexdigest()), b"x")], key=lambda p: p[0][-64:])
    assert empty in dict(blobs)
    assert is_refused(packed([("contents.json", sealed(contents | {"blobs": more})), *parts[:2], *members]))


def as_tar(contents: bytes, members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member, data in [(tarfile.TarInfo("contents.json"), contents), *members]:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def member_changes() -> dict[str, Callable[[tarfile.TarInfo], object]]:
    def set_to(**values: object) -> Callable[[tarfile.TarInfo], object]:
        return lambda member: [setattr(member, key, value) for key, value in values.items()]

    return {
        "climbs": set_to(name="../../etc/passwd"),
        "absolute": set_to(name="/etc/passwd"),
        "dot": set_to(name="./log/00000000000000000001.json"),
        "a link": set_to(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "a hard link": set_to(type=tarfile.LNKTYPE, linkname="contents.json"),
        "a device": set_to(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        "a pipe": set_to(type=tarfile.FIFOTYPE),
        "a folder": set_to(type=tarfile.DIRTYPE),
        "sparse": set_to(type=tarfile.GNUTYPE_SPARSE),
        "old": set_to(type=tarfile.AREGTYPE),
        "an owner": set_to(uid=1000, uname="operator"),
        "a time": set_to(mtime=1),
        "executable": set_to(mode=0o4755),
        "nothing": set_to(name="log/00000000000000000002.json"),
    }


@pytest.mark.parametrize("change", member_changes())
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_that_no_bundle_has_are_refused(small: dict[str, bytes], change: str, form: int) -> None:
    contents, parts = taken_apart(small["history"])
    members = []
    for name, data in parts:
        member = tarfile.TarInfo(name)
        member.mode = 0o444
        members.append((member, data))
    first = sealed(contents)
    member_changes()[change](members[0][0])
    assert is_refused(as_tar(first, members, form))


def test_members_in_another_order_or_twice_or_more_are_refused(small: dict[str, bytes]) -> None:
    contents, parts = taken_apart(small["history"])
    first = ("contents.json", sealed(contents))
    for wrong in (
        [first, *parts[::-1]],
        [*parts, first],
        [first, first, *parts],
        [first, parts[0], *parts],
        [first, *parts, parts[-1]],
        [first, *parts, ("other.json", b"{}")],
        [first, *parts[:-1]],
        parts,
        [],
    ):
        assert is_refused(packed(wrong))


def test_a_size_that_memory_could_not_hold_is_refused_before_anything_is_read(small: dict[str, bytes]) -> None:
    """`FileInMemory` fails if more is asked for than there is."""
    contents, parts = taken_apart(small["history"])
    huge = sealed(contents | {"blobs": [[sha, 8**11 - 1] for sha, _ in contents["blobs"]]})
    assert is_refused(packed([("contents.json", huge), *parts]))
    assert is_refused(bundle_tar.header("contents.json", 8**11 - 1) + bytes(10240))
    base256 = bytearray(bundle_tar.header("contents.json", 100))
    base256[124:136] = struct.pack(">IQ", 0x80000000, 2**40)
    assert is_refused(bytes(base256) + bytes(10240))


def history(changes: list[Any], blobs: dict[str, bytes], **words: Any) -> bytes:
    """A bundle whose digests are all right, whatever its entries say."""
    entries: list[bytes] = []
    before = GENESIS
    for number, change in enumerate(changes, start=1):
        told = {"actor": "a", "host": "h", "reason": "", "time": "2026-05-09T07:35:25.000Z", "txid": "t"} | words
        entry = Entry.model_construct(number=number, prev=before, change=change, **told)
        entries.append(entry.to_bytes())
        before = entry.digest
    contents = {
        "format": 1,
        "kind": "history",
        "name": "web",
        "first": 1,
        "log": [len(entry) for entry in entries],
        "head": before,
        "blobs": sorted([sha, len(data)] for sha, data in blobs.items()),
    }
    parts = [(f"log/{number:020d}.json", entry) for number, entry in enumerate(entries, start=1)]
    parts += [(blob_member(sha), blobs[sha]) for sha in sorted(blobs)]
    return packed([("contents.json", sealed(contents)), *parts])


def forged(
    manifest: bytes = canonical_json(FACTS), model: bytes = b"model", *, size: int | None = None, **more: Any
) -> bytes:
    named = {hashlib.sha256(data).hexdigest(): data for data in (model, manifest)}
    one, two = (hashlib.sha256(data).hexdigest() for data in (model, manifest))
    register = Register(
        op="register",
        version=more.pop("version", 1),
        model=one,
        size=len(model) if size is None else size,
        manifest=two,
    )
    return history([register, *more.pop("changes", [])], named, **more)


def move(alias: str, **values: Any) -> Move:
    return Move.model_construct(**({"op": "promote", "alias": alias, "version": 1, "previous": None} | values))


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 6},
        {"version": 2},
        {"manifest": b"{}"},
        {"manifest": b"not JSON"},
        {"manifest": b"[" * 100_000},
        {"manifest": canonical_json(FACTS)[:-1] + b',"z":NaN}'},
        {"manifest": canonical_json(FACTS)[:-1] + b',"z":1e999}'},
        {"manifest": canonical_json({k: v for k, v in FACTS.items() if k != "features"})},
        {"actor": "a\nb"},
        {"reason": "\x1b[31m"},
        {"time": "yesterday"},
        {"time": "2026-05-09"},
        {"changes": [move("../x")]},
        {"changes": [move("latest")]},
        {"changes": [move("blue", version=2)]},
        {"changes": [move("blue", previous=1)]},
        {"changes": [move("blue", op="force", waived="\x1b[2J")]},
        {"changes": [Tag(op="tag", version=1, key="owner", value="a\nb")]},
        {"changes": [Protect(op="protect", alias="blue", policy=AliasPolicy(metric="ndcg\n"))]},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_history_that_could_not_have_happened_is_refused(wrong: dict[str, Any]) -> None:
    assert not is_refused(forged())
    assert not is_refused(forged(changes=[move("blue")]))
    assert is_refused(forged(**wrong))


def test_an_origin_that_is_no_json_to_write_again_is_refused(registry: Registry, tmp_path: Path) -> None:
    for number, origin in enumerate((b'{"a":NaN}', b'{"a":-1e999}', b"[]", b"no JSON")):
        registry.register(f"m{number}", b"model", manifest=FACTS, attachments={"origin": origin})
        registry.export(f"m{number}@1", tmp_path / "m.tar", overwrite=True)
        with refused(IntegrityError, "m.tar", "damaged", "blob"):
            Registry(tmp_path / "other", disk=QuickDisk()).import_(tmp_path / "m.tar", move_aliases=True)


def test_a_pipe_is_no_bundle(registry: Registry, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "web.tar")
    with refused(InputError, "web.tar", "pipe"):
        registry.import_(tmp_path / "web.tar", move_aliases=True)
    assert not registry.root.exists()


def test_what_is_refused_changes_nothing(small: dict[str, bytes], tmp_path: Path) -> None:
    data = bytearray(small["history"])
    data[3000] ^= 1
    (tmp_path / "web.tar").write_bytes(data)
    registry = Registry(tmp_path / "r", disk=QuickDisk())
    with pytest.raises(IntegrityError):
        registry.import_(tmp_path / "web.tar", move_aliases=True)
    assert not (tmp_path / "r").exists()


def test_a_file_that_changes_while_it_is_read_puts_nothing_wrong_into_the_registry(
    small: dict[str, bytes], tmp_path: Path
) -> None:
    """Every member is checked again when it is read for the second time."""
    (tmp_path / "web.tar").write_bytes(small["history"])

    class Changes(QuickDisk):
        def __init__(self, call: int) -> None:
            self.calls, self.call = 0, call

        def read_part(self, path: Path, start: int, size: int) -> bytes:
            self.calls += 1
            data = super().read_part(path, start, size)
            return bytes(len(data)) if self.calls >= self.call else data

    for call in range(1, 60):
        registry = Registry(tmp_path / f"r{call}", disk=Changes(call))
        try:
            registry.import_(tmp_path / "web.tar", move_aliases=True)
        except RankmillError:
            assert Registry(tmp_path / f"r{call}").names() == []
        else:
            break
        assert Registry(tmp_path / f"r{call}").verify().ok
    else:
        raise AssertionError("never came through")
