"""Whatever a bundle's file holds, it is taken in as it was written, or refused by name with nothing changed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.registry.archive import OpenedBundle, import_bundle
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import GENESIS
from rankmill.registry.stored_records import AliasPolicy, Entry, Move, Protect, Register, Tag
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk

Parts = list[tuple[str, bytes]]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(data: bytes) -> OpenedBundle | None:
    """The bundle of these bytes; None if they are refused, and that in one line that names the file."""
    path = Path("some.tar")
    path.write_bytes(data)
    try:
        return OpenedBundle(path)
    except IntegrityError as error:
        line = str(error)
    assert line.isprintable()
    assert line.startswith("some.tar: ")
    return None


def is_refused(data: bytes) -> bool:
    return opened(data) is None


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


@pytest.mark.parametrize("stride", [37, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["history", "version"])
def test_no_flipped_byte_is_taken_in(small: dict[str, bytes], kind: str, stride: int) -> None:
    flip(small[kind], stride)


@pytest.mark.parametrize("kind", ["history", "version"])
def test_every_truncation_and_every_extension_is_refused(small: dict[str, bytes], kind: str) -> None:
    data = small[kind]
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512 + 1024  # the last block of a file and two of zeros
    for i in range(0, end, 171):
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


def sealed(contents: dict[str, Any]) -> bytes:
    body = canonical_json(contents)
    return b'{"contents":%b,"sha256":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def taken_apart(data: bytes) -> tuple[dict[str, Any], Parts]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        parts = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    return json.loads(parts[0][1])["contents"], parts[1:]


LIES: list[dict[str, Any]] = [
    *({"format": number} for number in (1, 4, True, 3.0)),
    *({"kind": kind} for kind in ("other", "version")),
    *({"name": name} for name in ("../web", "Web", "web\n", "", "a" * 65, "web.rankmill", None)),
    *({"head": head} for head in ("0" * 64, "x", None)),
    {"extra": 1},
]


def test_contents_that_lie_are_refused(small: dict[str, bytes]) -> None:
    contents, parts = taken_apart(small["history"])
    assert packed([("contents.json", sealed(contents)), *parts]) == small["history"]
    for change in LIES:
        changed = {key: value for key, value in (contents | change).items() if value is not None}
        assert is_refused(packed([("contents.json", sealed(changed)), *parts])), change
    more = hashlib.sha256(b"x").hexdigest()  # a blob that nothing refers to
    parts.append((f"blobs/{more}", b"x"))
    assert is_refused(packed([("contents.json", sealed(contents)), *parts]))


def test_an_older_bundle_is_refused_with_what_reads_it(small: dict[str, bytes]) -> None:
    contents, parts = taken_apart(small["history"])
    Path("old.tar").write_bytes(packed([("contents.json", sealed(contents | {"format": 1})), *parts]))
    with refused(IntegrityError, "old.tar", "format 1", "reads format 3", "rankmill 0.1.0", "export"):
        OpenedBundle(Path("old.tar"))


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
        "nothing": set_to(name="log/00000000000000000002.json"),
    }


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_that_no_bundle_has_are_refused(small: dict[str, bytes], form: int) -> None:
    contents, parts = taken_apart(small["history"])
    for name, change in member_changes().items():
        members = [(tarfile.TarInfo(part), data) for part, data in parts]
        for member, _ in members:
            member.mode = 0o444
        change(members[0][0])
        assert is_refused(as_tar(sealed(contents), members, form)), name


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
    contents, _ = taken_apart(small["history"])
    member = tarfile.TarInfo("log/00000000000000000001.json")
    member.size = 8**11 - 1
    first = packed([("contents.json", sealed(contents))])
    first = first[: len(first.rstrip(b"\0")) // 512 * 512 + 512]
    assert is_refused(first + member.tobuf(tarfile.USTAR_FORMAT) + bytes(10240))
    member.name = "contents.json"
    assert is_refused(member.tobuf(tarfile.USTAR_FORMAT) + bytes(10240))
    base256 = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    base256[124:136] = struct.pack(">IQ", 0x80000000, 2**40)
    base256[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(base256))[0]  # type: ignore[attr-defined]
    assert is_refused(bytes(base256) + bytes(10240))


def history(changes: list[Any], blobs: dict[str, bytes], **words: Any) -> bytes:
    """A bundle whose digests are all right, whatever its entries say."""
    entries: list[bytes] = []
    before = GENESIS
    for number, change in enumerate(changes, start=1):
        reported = {"actor": "a", "host": "h", "reason": "", "time": "2026-05-09T07:35:25.000Z", "txid": "t"} | words
        entry = Entry.model_construct(number=number, prev=before, change=change, **reported)
        entries.append(entry.to_bytes())
        before = entry.digest
    parts = [(f"log/{number:020d}.json", entry) for number, entry in enumerate(entries, start=1)]
    parts += [(f"blobs/{sha}", blobs[sha]) for sha in sorted(blobs)]
    contents = {"format": 3, "kind": "history", "name": "web", "head": before}
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
        {"changes": [Tag(op="tag", version=1, key="owner", value="a\nb")]},
        {"changes": [Protect(op="protect", alias="blue", policy=AliasPolicy(metric="ndcg\n"))]},
    ]
    for wrong in impossible:
        assert is_refused(forged(**wrong)), wrong


def test_an_origin_that_is_no_json_to_write_again_is_refused(registry: Registry, tmp_path: Path) -> None:
    for number, origin in enumerate((b'{"a":NaN}', b'{"a":-1e999}', b"[]", b"no JSON")):
        registry.register(f"m{number}", b"model", manifest=FACTS, attachments={"origin": origin})
        registry.export(f"m{number}@1", tmp_path / "m.tar", overwrite=True)
        with refused(IntegrityError, "m.tar", "damaged", "blobs"):
            Registry(tmp_path / "other", disk=QuickDisk()).import_(tmp_path / "m.tar", move_aliases=True)


def test_a_pipe_is_no_bundle(registry: Registry, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "web.tar")
    with refused(InputError, "web.tar", "pipe"):
        registry.import_(tmp_path / "web.tar", move_aliases=True)
    assert not registry.root.exists()


def test_a_file_that_changes_while_it_is_read_puts_nothing_wrong_into_the_registry(
    small: dict[str, bytes], tmp_path: Path
) -> None:
    """Every blob is checked again when it is read for the second time."""
    Path("web.tar").write_bytes(small["history"])
    bundle = OpenedBundle(Path("web.tar"))
    Path("web.tar").write_bytes(bytes(len(small["history"])))
    registry = Registry(tmp_path / "r", disk=QuickDisk())
    registry.prepare()
    with refused(IntegrityError, "web.tar", "digest"):
        import_bundle(registry._store, bundle, "web", "", move_aliases=True)
    assert registry.names() == []
    assert registry.verify().ok
