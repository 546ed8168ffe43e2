"""Each request of commands that read and write by URL goes wrong in turn, in each way.

A request that fails once changes nothing.  If it fails for good, the command says so in one line with its exit code,
and neither the bucket nor the disk has anything half-written.  Afterwards, and after the process was killed, the same
command gives the same bytes.
"""

import multiprocessing
import os
import signal
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass

import pytest

from rankmill.cli import execute
from rankmill.foundation.storage import bucket, fetching, local_copies
from rankmill.foundation.storage.bucket import open_bucket
from rankmill.foundation.storage.found_objects import UNFINISHED
from rankmill.foundation.storage.locks import LOCK_NAME
from tests.cloud.failing_proxy import FailingProxy
from tests.cloud.servers import SECRET, s3_environment
from tests.cloud.test_paths_in_a_bucket import SPLIT, call, inputs, model, upload, url_of

__all__ = ["inputs", "model"]
FETCHED, PUT = 30_000, 5 << 20  # bytes of a part; S3 takes no smaller ones
FAULTS = ("refused", "no answer", "cut off", "answer lost")
KILLS = ("killed before", "killed after")


@dataclass(frozen=True)
class Operation:
    """A command, in which IN and OUT are URLs."""

    words: tuple[str, ...]
    first: tuple[str, ...] = ()
    """What has made OUT before."""
    always_whole: bool = True
    """Whether readers find the old or the new output at any time."""


RERANK = ("rerank", "IN/candidates", "-m", "IN/web.rankmill", "-o", "OUT")
OPERATIONS = {
    "rerank": Operation(RERANK),
    "rerank to one file": Operation((*RERANK[:-1], "OUT.run")),
    "rerank again": Operation((*RERANK, "--overwrite"), (*RERANK, "--top-k", "3"), always_whole=False),
    "write a large file": Operation(("data", "synth", "-o", "OUT.txt", "--queries", "3000", "--features", "20")),
    "ingest": Operation(("data", "ingest", "IN/days/*.txt*", "-o", "OUT", "--buckets", "2", *SPLIT)),
}


def small_parts(*, patient, timeout="20s"):
    """What tests change: small objects have several parts; and nobody waits long."""
    yield fetching, "PART", FETCHED
    yield bucket, "PART", PUT
    yield local_copies, "_LARGE", PUT
    yield bucket, "TIMEOUT", timeout
    yield bucket, "RETRIES", 2 if patient else 0
    yield fetching, "PAUSES", (0.05, 0.1) if patient else ()


class Story:
    """The places of one operation, and what must be found there."""

    def __init__(self, operation, there, folder):
        self.operation, self.given, self._folder = operation, there / "in", folder
        self._client = open_bucket(there)  # not by the proxy
        self.cache, self.temporary = folder / "cache", folder / "tmp"
        self.temporary.mkdir()
        self.out = there / uuid.uuid4().hex
        self.old = {}
        if operation.first:
            call(*self._named(operation.first, self.out))
            self.old = self.found(self.out)
        call(*self.words(there / "expected"))
        self.new = self.found(there / "expected")
        self.last = "_manifest.json" if "_manifest.json" in self.new else next(iter(self.new))

    def words(self, out=None):
        """The command, and OUT as it was before."""
        if out is not None:
            self._put(out, self.old)
        return [*self._named(self.operation.words, out or self.out), "--cache", str(self.cache)]

    def _named(self, words, out):
        return [word.replace("IN", str(self.given)).replace("OUT", str(out)) for word in words]

    def _put(self, out, files):
        client = self._client
        for each in list(client.below(out.parent)):
            if each.url.name.startswith(out.name) or str(each.url).startswith(f"{out}/"):
                client.delete(each.url)
        for name, data in files.items():
            client.put(out / name, data)

    def begin(self):
        """Start anew, with an empty cache."""
        self.words(self.out)
        for path in sorted(self._folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
        self.temporary.mkdir()

    def found(self, out):
        """All that belongs to ``out``."""
        client = self._client
        return {
            str(each.url).removeprefix(str(out)).removeprefix("/"): client.get(each.url)
            for each in client.below(out.parent)
            if str(each.url).startswith(str(out))
        }

    def check_bucket(self):
        """Whatever is complete is the old or the new one."""
        found = self.found(self.out)
        if self.last not in found:
            assert not (self.old and self.operation.always_whole)
            assert not found or UNFINISHED in found
        else:
            whole = next(each for each in (self.new, self.old) if each.get(self.last) == found[self.last])
            assert {name: found.get(name) for name in whole} == whole
        assert set(found) <= {*self.new, *self.old, UNFINISHED}

    def check_disk(self, *, killed=False):
        """What is in the cache is whole; nothing else is left."""
        client = self._client
        whole = {client.get(each.url) for url in (self.given, self.out) for each in client.below(url)}
        whole |= {*self.old.values(), *self.new.values()}
        for path in (self.cache / "objects").glob("*/*"):
            if not path.name.endswith(".staging"):
                assert path.read_bytes() in whole
            else:
                assert killed
        assert killed or not list(self.temporary.iterdir())
        for path in (self.cache / "out").rglob("*"):  # the result, if its upload has failed
            assert killed or not path.is_file() or path.name == LOCK_NAME or path.read_bytes() in whole

    def check_refusal(self, code, reported):
        """The last line says what failed, and where."""
        assert code == 74, reported
        (line,) = [text for text in reported.splitlines() if text.startswith("rankmill: ")]
        assert reported.endswith(f"{line}\n")
        assert f"s3://{self.out.bucket}/" in line
        assert SECRET not in line
        assert str(self.temporary) not in line

    def check_again(self):
        """The same command does it; unless all is there, and only the answer or tidying up has failed."""
        found = self.found(self.out)
        complete = found.get(self.last) == self.new[self.last]
        code = execute(self.words())
        if complete and code == 2:
            assert {name: found.get(name) for name in self.new} == self.new
        else:
            assert code == 0
            self.check_done()

    def check_done(self):
        assert self.found(self.out) == self.new
        assert not list(self.cache.glob("out/*"))


@pytest.fixture
def proxy(s3):
    made = FailingProxy(int(s3.environment["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    yield made
    made.close()


@pytest.fixture
def story(
    request, s3, inputs, model, tmp_path, proxy,
    monkeypatch,
):  # fmt: skip
    there = url_of(f"{s3.url}/{uuid.uuid4().hex}")
    upload(inputs, there / "in")
    open_bucket(there).put(there / "in" / "web.rankmill", model.read_bytes())
    for module, name, value in small_parts(patient=True):
        monkeypatch.setattr(module, name, value)
    monkeypatch.chdir(tmp_path)
    made = Story(OPERATIONS[request.param], there, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(made.temporary))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    return made


def requests_of(story, proxy):
    """All requests of the operation."""
    story.begin()
    proxy.fail("", "")
    assert execute(story.words()) == 0
    asked = sorted({*proxy.requests})
    story.check_done()
    return asked


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("story", OPERATIONS, indirect=True)
def test_a_request_that_fails_is_repeated_or_named(story, fault, proxy, monkeypatch, capfd):
    for request in requests_of(story, proxy):
        for lasting in (False, True):
            story.begin()
            proxy.fail(request, fault, lasting=lasting)
            capfd.readouterr()
            with monkeypatch.context() as patch:
                timeout = "700ms" if fault == "no answer" else "20s"
                for module, name, value in small_parts(patient=not lasting, timeout=timeout):
                    patch.setattr(module, name, value)
                code = execute(story.words())
            reported, met = capfd.readouterr().err, proxy.met
            proxy.fail("", "")
            try:
                assert met, "the request was not made"
                if lasting and code:
                    story.check_refusal(code, reported)
                    story.check_bucket()
                    story.check_disk()
                    story.check_again()
                else:
                    assert code == 0, reported
                    story.check_done()
                story.check_disk()
            except AssertionError as error:
                error.add_note(f"{fault}, {'always' if lasting else 'once'}: {request}")
                raise


@pytest.fixture(scope="module")
def forks():
    """Starts processes quickly; made before the folder for temporary files is another one."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        ["obstore.store", "rankmill.scorer.rerank.rerank", "rankmill.pipeline.ingest.run_ingest", __name__]
    )
    first = made.Process(target=int)
    first.start()
    first.join()
    return made


def in_a_process(words, environment, temporary):
    """Run a command, in a process that was forked."""
    os.environ.update(environment)
    tempfile.tempdir = temporary
    for module, name, value in small_parts(patient=True):
        setattr(module, name, value)
    os._exit(execute(words))


@pytest.mark.slow
@pytest.mark.parametrize("fault", KILLS)
@pytest.mark.parametrize("story", OPERATIONS, indirect=True)
def test_a_command_that_is_killed_leaves_nothing_half_written(forks, story, fault, proxy):
    for request in requests_of(story, proxy):
        story.begin()
        given = (story.words(), s3_environment(proxy.port), str(story.temporary))
        process = forks.Process(target=in_a_process, args=given)

        def kill(process=process):
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
                while True:  # until it is gone
                    os.kill(process.pid, 0)
                    time.sleep(0.001)

        proxy.fail(request, fault, kill=kill)
        process.start()
        process.join()
        met = proxy.met
        proxy.fail("", "")
        try:
            assert (met, process.exitcode) == (1, -signal.SIGKILL)
            story.check_bucket()
            story.check_disk(killed=True)
            story.check_again()
        except AssertionError as error:
            error.add_note(f"{fault}: {request}")
            raise
