"""Objects of a bucket in memory under local names: which are found, what is put when, and what goes wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import ConflictError, InputError, MissingLibrary
from rankmill.foundation.storage import fetching, local_copies
from rankmill.foundation.storage.bucket import NoPermission, ObjectFacts, StoreError, TruncatedAnswer
from rankmill.foundation.storage.found_objects import find
from rankmill.foundation.storage.local_copies import LocalCopies, object_behind
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.foundation.storage.url_arguments import local_paths
from tests.refusals import refused
from tests.registry.model_bucket import ModelBucket, World

ROOT = ObjectUrl("s3", "b")


class Bucket(ModelBucket):
    """A bucket in memory that also has parts and files, and writes down every change."""

    def __init__(self) -> None:
        super().__init__(World())
        self.changes: list[str] = []
        self.parts = 0
        self.before_part: Callable[[int], None] = lambda number: None
        self.before_put: Callable[[ObjectUrl], None] = lambda url: None

    def _tagged(self, facts: ObjectFacts) -> ObjectFacts:
        return facts._replace(tag=facts.version)

    def head(self, url: ObjectUrl) -> ObjectFacts:
        return self._tagged(super().head(url))

    def below(self, above: ObjectUrl, after: str = "", prefix: str = "") -> list[ObjectFacts]:
        return [self._tagged(each) for each in super().below(above, after, prefix)]

    def part(self, url: ObjectUrl, start: int, size: int) -> tuple[bytes, str]:
        self.parts += 1
        self.before_part(self.parts)
        data = self.get(url)
        return data[start : start + size], str(hash(data))

    def put_file(self, url: ObjectUrl, path: Path) -> None:
        self.before_put(url)
        self.changes.append(url.name)
        self.put(url, path.read_bytes())

    def put_new(self, url: ObjectUrl, data: bytes) -> bool:
        self.before_put(url)
        self.changes.append(f"new {url.name}")
        return super().put_new(url, data)

    def delete(self, url: ObjectUrl) -> None:
        self.changes.append(f"no {url.name}")
        super().delete(url)

    def fill(self, *keys: str) -> None:
        for key in keys:
            self.put(ROOT / key, key.encode())

    @property
    def keys(self) -> set[str]:
        return {url.key for url in self.world.objects}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(local_copies, "open_bucket", lambda url: made)
    monkeypatch.setattr(fetching, "PART", 4)
    monkeypatch.setattr(fetching, "PAUSES", (0, 0))
    return made


@pytest.fixture
def copies(bucket: Bucket, tmp_path: Path) -> Iterator[LocalCopies]:
    made = LocalCopies(tmp_path / "cache")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("key", "found"),
    {
        "a/x.txt.gz": {"a/x.txt.gz", "a/x.txt.query"},
        "a/r.parquet": {"a/r.parquet", "a/r.parquet.grades.parquet"},
        "a": {"a/x.txt.gz", "a/x.txt.query", "a/r.parquet", "a/r.parquet.grades.parquet", "a/_y.csv", "a/q[1].csv"},
        "a/*.gz": {"a/x.txt.gz", "a/x.txt.query"},
        "a/[qr]*.csv": {"a/q[1].csv"},
        "a/q[1].csv": {"a/q[1].csv"},
        "**/*.csv": {"a/_y.csv", "a/q[1].csv", "a/deep/z.csv", "top.csv"},
        "ds": {"ds/_manifest.json", "ds/features/1.parquet", "ds/_unjudged/2.parquet"},
        "ds/_unjudged": {"ds/_manifest.json", "ds/features/1.parquet", "ds/_unjudged/2.parquet"},
        "": {"top.csv"},
    }.items(),
)
def test_a_url_names_what_a_path_would(key: str, found: set[str], bucket: Bucket, copies: LocalCopies) -> None:
    bucket.fill("a/x.txt.gz", "a/x.txt.query", "a/r.parquet", "a/r.parquet.grades.parquet", "a/_y.csv", "a/q[1].csv")
    bucket.fill(
        "a/.hidden", "a/deep/z.csv", "top.csv", "ds/_manifest.json", "ds/features/1.parquet", "ds/_unjudged/2.parquet"
    )
    url = ObjectUrl("s3", "b", key)
    assert {each.url.key for each in find(url, copies.client(url))} == found
    place = copies.read(url)
    for each in found:
        local = copies.place(ROOT / each)
        assert local.read_bytes() == each.encode()
        assert (behind := object_behind(local)) is not None
        assert behind.url == ROOT / each
        assert copies.named(f"{local}: broken") == f"s3://b/{each}: broken"
    assert place.name == (url.name or "b")


def test_what_is_not_there_is_said(bucket: Bucket, copies: LocalCopies) -> None:
    bucket.fill("a/b", "c", "c/d")
    for key, words in {"x": "no such object", "a/*.csv": "no object matches", "": "no such object"}.items():
        if key:
            with refused(InputError, words):
                copies.read(ROOT / key)
    with refused(InputError, "object and a folder"):
        copies.fetch([bucket.head(ROOT / "c"), bucket.head(ROOT / "c/d")])


def test_objects_are_fetched_once_and_again_when_they_change(bucket: Bucket, tmp_path: Path) -> None:
    bucket.fill("long-object")
    bucket.put(ROOT / "empty", b"")
    for parts in (3, 3):
        copies = LocalCopies(tmp_path / "cache")
        assert copies.read(ROOT / "long-object").read_bytes() == b"long-object"
        assert copies.read(ROOT / "empty").read_bytes() == b""
        place = copies.place(ROOT / "empty")
        copies.close()
        assert not place.exists()
        assert object_behind(place) is None
        assert bucket.parts == parts
    bucket.put(ROOT / "long-object", b"another one")
    copies = LocalCopies(tmp_path / "cache")
    assert copies.read(ROOT / "long-object").read_bytes() == b"another one"
    copies.close()


@pytest.mark.parametrize(("error", "tries"), [(TruncatedAnswer, 3), (StoreError, 3), (NoPermission, 1)])
def test_a_part_that_fails_is_asked_for_again(
    error: type[StoreError], tries: int, bucket: Bucket, copies: LocalCopies, tmp_path: Path
) -> None:
    bucket.fill("abc")
    url = ROOT / "abc"

    def fail(until: int) -> Callable[[int], None]:
        def before(number: int) -> None:
            if number <= until:
                raise error(url, "a made error", errno.EIO)

        return before

    bucket.before_part = fail(10**9)
    with refused(error, "made"):
        copies.read(url)
    assert bucket.parts == tries
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    if tries > 1:
        bucket.parts, bucket.before_part = 0, fail(tries - 1)
        assert copies.read(url).read_bytes() == b"abc"


def test_an_object_that_is_replaced_while_it_is_read_is_noticed(
    bucket: Bucket, copies: LocalCopies, tmp_path: Path
) -> None:
    bucket.fill("long-object")
    bucket.before_part = lambda number: bucket.put(ROOT / "long-object", b"%011d" % number)
    with refused(ConflictError, "s3://b/long-object", "replaced"):
        copies.read(ROOT / "long-object")
    bucket.before_part = lambda number: super(Bucket, bucket).delete(ROOT / "long-object")
    with refused(ConflictError, "s3://b/long-object", "removed"):
        copies.read(ROOT / "long-object")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def write(out: str, files: dict[str, str], cache: Path, **given: Any) -> None:
    with local_paths({"out": f"s3://b/{out}", "overwrite": False, **given}, cache) as local:
        for name, text in files.items():
            path = Path(local["out"], name) if name else Path(local["out"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(text)


DIGESTS = ["0" * 64, "1" * 64]


def test_a_folder_is_complete_when_its_manifest_is_there(bucket: Bucket, tmp_path: Path) -> None:
    first = {"_manifest.json": "1", f"x/{DIGESTS[0]}.parquet": "same", "x/_manifest.json": "inner", "z": "1"}
    write("f", first, tmp_path)
    assert bucket.changes[-3:] == ["new _manifest.json", "new _manifest.json", "no _unfinished"]
    assert bucket.get(ROOT / "f/_manifest.json") == b"1"
    with refused(InputError, "s3://b/f", "exists already", "--overwrite"):
        write("f", first, tmp_path)
    bucket.changes.clear()
    write(
        "f",
        {"_manifest.json": "2", f"x/{DIGESTS[0]}.parquet": "same", f"x/{DIGESTS[1]}.parquet": "n"},
        tmp_path,
        overwrite=True,
    )
    assert bucket.changes[:2] == [f"{DIGESTS[1]}.parquet", "_manifest.json"]  # immutable files: nothing is taken away
    assert sorted(bucket.changes[2:]) == ["no _manifest.json", "no z"]
    bucket.changes.clear()
    write("f", {"_manifest.json": "3", f"x/{DIGESTS[0]}.parquet": "same", "y": "new"}, tmp_path, overwrite=True)
    write("f", {"_manifest.json": "4", "y": "newer"}, tmp_path, overwrite=True)
    assert bucket.changes[-5:-1] == ["no _manifest.json", "y", "_manifest.json", "no _unfinished"]
    assert bucket.changes[-1] == f"no {DIGESTS[0]}.parquet"
    assert bucket.keys == {"f/_manifest.json", "f/y"}
    bucket.fill("other/x")
    with refused(InputError, "s3://b/other", "other objects"):
        write("other", first, tmp_path, overwrite=True)


def test_a_folder_that_grows_has_only_its_changes_put(bucket: Bucket, tmp_path: Path) -> None:
    write("f", {"_manifest.json": "1", "a": "a", "b": "b"}, tmp_path)
    bucket.changes.clear()
    with local_paths({"dataset": "s3://b/f"}, tmp_path, updated="dataset") as local:
        folder = Path(local["dataset"])
        assert (folder / "a").read_text() == "a"
        (folder / "b").unlink()
        (folder / "c").write_text("c")
        (folder / "_manifest.json").unlink()
        (folder / "_manifest.json").write_text("2")
    assert bucket.changes == ["c", "_manifest.json", "no b"]
    assert bucket.keys == {"f/_manifest.json", "f/a", "f/c"}


def test_nothing_is_complete_after_an_error(bucket: Bucket, tmp_path: Path) -> None:
    def broken(url: ObjectUrl) -> None:
        if url.name == "b":
            raise StoreError(url, "a made error")

    bucket.before_put = broken
    with refused(StoreError, "made", "the result is in", tmp_path / "out"):
        write("f", {"_manifest.json": "1", "a": "1", "b": "1"}, tmp_path)
    assert {path.name for path in (tmp_path / "out").rglob("f/*")} == {"_manifest.json", "a", "b"}
    assert bucket.keys == {"f/_unfinished", "f/a"}
    bucket.before_put = lambda url: None
    with refused(ConflictError, "s3://b/f", "not complete"), local_paths({"sources": ["s3://b/f"]}, tmp_path):
        raise AssertionError
    write("f", {"_manifest.json": "2", "b": "2"}, tmp_path)  # the same command again, without --overwrite
    assert bucket.keys == {"f/_manifest.json", "f/b"}
    assert not list((tmp_path / "out").iterdir())
    bucket.world.objects.clear()
    with refused(ValueError, "s3://b/f", "bad"), local_paths({"out": "s3://b/f"}, tmp_path) as local:
        Path(local["out"]).write_text("half")
        Path(f"{local['out']}.rejects.txt").write_text("rows")
        raise ValueError(f"{local['out']} is bad")
    assert bucket.keys == {"f.rejects.txt"}
    write("f", {"": "whole"}, tmp_path)
    assert bucket.get(ROOT / "f") == b"whole"


def test_of_two_that_write_the_same_one_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with refused(ConflictError, "s3://b/f", "writing"), local_paths({"out": "s3://b/f"}, tmp_path):
        write("f", {"": "2"}, tmp_path)
    bucket.before_put = lambda url: bucket.put(url, b"mine")
    with refused(ConflictError, "s3://b/f", "meanwhile"):
        write("f", {"": "2"}, tmp_path)
    bucket.before_put = lambda url: bucket.put(url, b"2")  # the answer to our own request was lost
    bucket.world.objects.clear()
    write("f", {"": "2"}, tmp_path)


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    monkeypatch.setitem(__import__("sys").modules, "obstore.exceptions", None)
    with refused(MissingLibrary, "s3://b", "pip install 'rankmill[cloud]'"), local_paths({"sources": ["s3://b/x"]}):
        raise AssertionError


def test_an_interrupted_command_leaves_in_the_cache_what_can_be_resumed(bucket: Bucket, tmp_path: Path) -> None:
    def interrupted() -> None:
        with local_paths({"out": "s3://b/f"}, tmp_path) as local:
            staged = Path(local["out"]).with_name(".f.1.staging")
            staged.mkdir()
            Path(local["out"]).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert bucket.keys == set()
    with local_paths({"out": "s3://b/f"}, tmp_path) as local:
        assert [path.name for path in Path(local["out"]).parent.iterdir()] == [".f.1.staging"]
        Path(local["out"]).write_text("whole")
    assert bucket.get(ROOT / "f") == b"whole"
    assert not list((tmp_path / "out").iterdir())
