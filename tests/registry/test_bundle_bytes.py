"""Whatever a bundle's file holds, it is taken in as it was written, or refused by name with nothing changed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.registry.archive import opened_bundle
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import GENESIS
from rankmill.registry.stored_records import AliasPolicy, Entry, Move, Protect, Register
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk

Parts = list[tuple[str, bytes]]
FORMAT = ("FORMAT.json", b'{"format":5,"kind":"disk","protected":["production"]}\n')


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def is_refused(data: bytes) -> bool:
    """Whether a bundle of these bytes is refused, and that in one line that names the file."""
    Path("some.tar").write_bytes(data)
    try:
        with opened_bundle(Path("some.tar")):
            return False
    except IntegrityError as error:
        line = str(error)
    assert line.isprintable()
    assert line.startswith("some.tar: ")
    return True


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


def flip(whole: bytes, stride: int) -> None:
    """Each changed byte is refused."""
    data = bytearray(whole)
    assert not is_refused(whole)
    for i in range(0, len(data), stride):
        data[i] ^= 1 << i % 8
        assert is_refused(bytes(data)), i
        data[i] ^= 1 << i % 8


@pytest.mark.parametrize("stride", [197, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["history", "version"])
def test_no_flipped_byte_is_taken_in(small: dict[str, bytes], kind: str, stride: int) -> None:
    flip(small[kind], stride)


@pytest.mark.parametrize("kind", ["history", "version"])
def test_every_truncation_and_every_extension_is_refused(small: dict[str, bytes], kind: str) -> None:
    data = small[kind]
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512 + 1024  # the last block of a file and two of zeros
    for i in range(0, end, 271):
        assert is_refused(data[:i])
    for more in (b"\n", bytes(10240) + b"x", bytes(1 << 20), data):
        assert is_refused(data + more)
        assert is_refused(more + data)


def test_a_compressed_bundle_is_refused(small: dict[str, bytes]) -> None:
    assert is_refused(gzip.compress(small["history"]))
    assert is_refused(gzip.compress(bytes(1 << 20)))


# ---- bundles of a forger, who seals every digest again ---------------------------------------------------------------


def packed(parts: Parts) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in parts:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o444
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def unpacked_parts(data: bytes) -> Parts:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def test_another_format_is_refused_with_what_reads_it(small: dict[str, bytes]) -> None:
    parts = unpacked_parts(small["history"])
    assert parts[0] == FORMAT
    assert packed(parts) == small["history"]
    for data in (b'{"format":4,"kind":"disk","protected":["production"]}\n', FORMAT[1].replace(b"5", b"6")):
        Path("old.tar").write_bytes(packed([("FORMAT.json", data), *parts[1:]]))
        with refused(IntegrityError, "old.tar", "FORMAT.json", "reads format 5"), opened_bundle(Path("old.tar")):
            pass
    for data in (b"", FORMAT[1].replace(b"disk", b"bucket"), FORMAT[1].replace(b"production", b"shadow")):
        assert is_refused(packed([("FORMAT.json", data), *parts[1:]]))
    Path("old.tar").write_bytes(packed([("contents.json", b"{}"), *parts[1:]]))
    with refused(IntegrityError, "old.tar", "contents.json", "export the model again"), opened_bundle(Path("old.tar")):
        pass


def as_tar(members: list[tuple[tarfile.TarInfo, bytes]], form: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member, data in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def member_changes() -> dict[str, Callable[[tarfile.TarInfo], object]]:
    def set_to(**values: object) -> Callable[[tarfile.TarInfo], object]:
        return lambda member: [setattr(member, key, value) for key, value in values.items()]

    return {
        "climbs": set_to(name="../../etc/passwd"),
        "absolute": set_to(name="/etc/passwd"),
        "dot": set_to(name="./models/web/log/00000000000000000001.json"),
        "a link": set_to(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "a hard link": set_to(type=tarfile.LNKTYPE, linkname="FORMAT.json"),
        "a device": set_to(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        "a pipe": set_to(type=tarfile.FIFOTYPE),
        "a folder": set_to(type=tarfile.DIRTYPE),
        "a name above": set_to(name="models/../log/00000000000000000001.json"),
        "owned": set_to(uname="root"),
        "dated": set_to(mtime=1),
        "sparse": set_to(type=tarfile.GNUTYPE_SPARSE),
        "nothing": set_to(name="models/web/log/00000000000000000002.json"),
    }


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_that_no_bundle_has_are_refused(small: dict[str, bytes], form: int) -> None:
    for name, change in member_changes().items():
        members = [(tarfile.TarInfo(part), data) for part, data in unpacked_parts(small["history"])]
        for member, _ in members:
            member.mode = 0o444
        change(members[1][0])
        assert is_refused(as_tar(members, form)), name


def test_members_in_another_order_or_twice_or_more_are_refused(small: dict[str, bytes]) -> None:
    first, *parts = unpacked_parts(small["history"])
    more = hashlib.sha256(b"x").hexdigest()
    for wrong in (
        [first, *parts[::-1]],
        [*parts, first],
        [first, first, *parts],
        [first, parts[0], *parts],
        [first, *parts, parts[-1]],
        [first, *parts, ("other.json", b"{}")],
        [first, *parts, (f"blobs/web/{more}", b"x")],
        [first, *parts, (f"blobs/shop/{more}", b"x")],
        [first, *parts, ("models/shop/log/00000000000000000001.json", parts[0][1])],
        [first, *parts[:-1]],
        [first],
        parts,
        [],
    ):
        assert is_refused(packed(wrong))


def test_a_size_beyond_the_end_is_refused(small: dict[str, bytes]) -> None:
    member = tarfile.TarInfo("models/web/log/00000000000000000001.json")
    member.size = 8**11 - 1
    first = packed([FORMAT])
    first = first[: len(first.rstrip(b"\0")) // 512 * 512 + 512]
    assert is_refused(first + member.tobuf(tarfile.USTAR_FORMAT) + bytes(10240))


def history(changes: list[Any], blobs: dict[str, bytes], **words: Any) -> bytes:
    """A bundle whose digests are all right, whatever its entries say."""
    entries: list[bytes] = []
    before = GENESIS
    for number, change in enumerate(changes, start=1):
        reported = {"actor": "a", "host": "h", "reason": "", "time": "2026-05-09T07:35:25.000Z", "txid": "t"} | words
        entry = Entry.model_construct(number=number, prev=before, change=change, **reported)
        entries.append(entry.to_bytes())
        before = entry.digest
    parts = [(f"models/web/log/{number:020d}.json", entry) for number, entry in enumerate(entries, start=1)]
    parts += [(f"blobs/web/{sha}", blobs[sha]) for sha in sorted(blobs)]
    return packed([FORMAT, *parts])


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


def test_a_history_that_could_not_have_happened_is_refused(registry: Registry) -> None:
    assert not is_refused(forged())
    assert not is_refused(forged(changes=[move("blue")]))
    impossible: list[dict[str, Any]] = [
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
        {
            "changes": [
                Protect.model_construct(op="protect", alias="blue", policy=AliasPolicy.model_construct(metric="ndcg\n"))
            ]
        },
    ]
    for wrong in impossible:
        assert is_refused(forged(**wrong)), wrong


def test_a_pipe_is_no_bundle(registry: Registry, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "web.tar")
    with refused(InputError, "web.tar", "pipe"):
        registry.import_(tmp_path / "web.tar", move_aliases=True)
    assert not registry.root.exists()
