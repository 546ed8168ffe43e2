"""A registry in a bucket of real servers: the whole story, and every way to be refused."""

import json
import os
import signal
import socket
import threading
import uuid

import pytest
from typer.testing import CliRunner

import rankmill
from rankmill.cli import app
from rankmill.foundation.storage import bucket
from rankmill.foundation.storage.bucket import (
    BadCredentials,
    MissingBucket,
    StoreError,
    TruncatedAnswer,
    open_bucket,
    store_error,
)
from rankmill.foundation.storage.location import ObjectUrl, location
from rankmill.registry.model_registry import Registry
from tests.cloud.conftest import reach
from tests.cloud.servers import SECRET
from tests.refusals import refused
from tests.registry.conftest import FACTS
from tests.registry.test_races import all_at_once


def place(server):
    """A prefix of its own."""
    return f"{server.url}/{uuid.uuid4().hex}/registry"


def url_of(text):
    found = location(text)
    assert isinstance(found, ObjectUrl)
    return found


def test_a_model_from_registration_to_rollback(server, tmp_path):
    registry = Registry(place(server))
    assert registry.initialise()
    for number in (1, 2, 3):
        registry.register("web", b"model %d" % number, manifest=FACTS | {"best_round": number}, reason="nightly")
        registry.promote("web", number, force=True)
    registry.rollback("web")
    again = Registry(registry.root)
    assert again.names() == ["web"]
    assert again.resolve("web").read() == b"model 2"
    assert again.register("web", b"model 1", manifest=FACTS | {"best_round": 1}).number == 1
    assert [entry.number for entry in again.log("web")[5:]] == [6, 7]
    assert again.verify().ok
    again.gc()
    local = Registry(tmp_path / "local")
    again.copy(local)
    assert local.log("web") == again.log("web")
    there = Registry(place(server))
    local.copy(there)
    assert there.log("web") == again.log("web")
    assert there.verify().ok


def test_the_client_keeps_the_promises_of_the_protocol(server):
    root = url_of(place(server))
    store = open_bucket(root)
    assert store.put_new(root / "a" / "1", b"one")
    assert not store.put_new(root / "a" / "1", b"two")
    assert store.get(root / "a" / "1") == b"one"
    assert store.get(root / "a" / "1", 2) == b"on"
    store.put(root / "a" / "1", b"three")
    store.put(root / "a" / "empty", b"")
    assert store.get(root / "a" / "empty") == b""
    assert store.get(root / "a" / "empty", 5) == b""
    for name in ("2", "22", "23", "3"):
        store.put(root / "a" / name, name.encode())
    store.put(root / "b" / "c" / "deep", b"x" * 100_000)
    assert store.names(root) == ["a", "b"]
    assert store.names(root / "b") == ["c"]
    assert store.names(root / "none") == []
    assert [stored.url.name for stored in store.below(root / "a")] == ["1", "2", "22", "23", "3", "empty"]
    assert [stored.url.name for stored in store.below(root / "a", after="22")] == ["23", "3", "empty"]
    assert [stored.url.name for stored in store.below(root / "a", prefix="2")] in (["22", "23"], ["2", "22", "23"])
    found = store.head(root / "b" / "c" / "deep")
    assert found.size == 100_000
    assert found.version
    store.delete(root / "a" / "1")
    store.delete(root / "a" / "1")
    with pytest.raises(FileNotFoundError):
        store.get(root / "a" / "1")
    with pytest.raises(FileNotFoundError):
        store.head(root / "a" / "1")


@pytest.mark.slow  # SeaweedFS waits ten seconds for its first lock
def test_of_many_that_write_one_object_one_wins(server):
    root = url_of(place(server))
    stores = [open_bucket(root) for _ in range(8)]
    for number in range(10):
        won = all_at_once(8, lambda i, n=number: stores[i].put_new(root / str(n), b"%d" % i))  # type: ignore[misc]
        assert sorted(map(str, won)) == ["False"] * 7 + ["True"]
        assert stores[0].get(root / str(number)) == b"%d" % won.index(True)


def test_a_store_without_conditional_writes_is_refused(servers, monkeypatch):
    root = place(reach(servers["rclone"], monkeypatch))
    with refused(OSError, root, "If-None-Match"):
        Registry(root).initialise()
    assert open_bucket(url_of(root)).names(url_of(root)) == []


def test_the_commands_take_a_url(s3, tmp_path):
    root, local, runner = place(s3), tmp_path / "local", CliRunner()
    source = Registry(local)
    source.register("web", b"model", manifest=FACTS)

    def call(*words):
        result = runner.invoke(app, [*words, "--registry", root])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    assert "Created a registry" in call("models", "init")
    assert "web" in runner.invoke(app, ["models", "copy", "--registry", str(local), "--to", root]).stdout
    assert "web" in call("models", "list")
    assert json.loads(call("models", "promote", "web@1", "--force", "--json"))["changed"]
    assert "production" in call("models", "alias", "web")
    assert "production = 1" in call("models", "list")
    assert "model" in call("models", "show", "web")
    assert json.loads(call("models", "verify", "--json"))["ok"]
    call("models", "gc")
    call("models", "export", "web", "-o", str(tmp_path / "web.tar"))
    call("models", "import", str(tmp_path / "web.tar"), "--as", "other", "--move-aliases")
    assert json.loads(call("models", "list", "--json"))["registry"] == root


def test_models_are_loaded_and_registered_from_python(s3):
    root = place(s3)
    table = [[float(number), float(number % 3)] for number in range(40)]
    ranker = rankmill.Ranker(n_rounds=2).fit(table, [number % 4 for number in range(40)], qid=[0] * 20 + [1] * 20)
    assert rankmill.register_model(ranker, "web", registry=root).number == 1
    loaded = rankmill.load_model("web@1", registry=root)
    assert loaded.predict(table).tolist() == ranker.predict(table).tolist()


def test_the_secret_is_written_nowhere(s3, tmp_path, capfd):
    root = url_of(place(s3))
    registry = Registry(root)
    registry.register("web", b"model", manifest=FACTS, reason="nightly")
    registry.export("web", tmp_path / "web.tar")
    store = open_bucket(root)
    written = [store.get(stored.url) for stored in store.below(root)]
    assert len(written) > 3
    everything = [*written, (tmp_path / "web.tar").read_bytes()]
    everything += [text.encode() for text in capfd.readouterr()]
    assert not [data for data in everything if SECRET.encode() in data]


def answering(answer):
    """A server on loopback that gives every request this answer, until the event is set."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()
    listener.settimeout(0.1)

    def serve():
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(1)
                try:
                    connection.recv(65536)
                    connection.sendall(answer)
                except OSError:
                    pass
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1]), ended


def _http(status, body="", length=None, **headers):
    fixed = {"ETag": '"e"', "Last-Modified": "Wed, 21 Oct 2026 07:28:00 GMT", "Connection": "close"}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in (fixed | headers).items()]
    size = len(body) if length is None else length
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {size}", *lines, "", body]).encode()


def _error(code):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"


ANSWERS = {
    "cut off": (_http("200 OK", "half", length=8), TruncatedAnswer, ("cut off",)),
    "expired": (_http("400 Bad Request", _error("ExpiredToken")), BadCredentials, ("expired", "ExpiredToken")),
    "elsewhere": (
        _http("301 Moved Permanently", _error("PermanentRedirect")),
        bucket.WrongRegion,
        ("another region", "AWS_REGION"),
    ),
    "wrong region": (
        _http("400 Bad Request", _error("AuthorizationHeaderMalformed")),
        bucket.WrongRegion,
        ("another region",),
    ),
    "not allowed": (
        _http("403 Forbidden", _error("AccessDenied")),
        bucket.NoPermission,
        ("permission", "AccessDenied"),
    ),
    "busy": (_http("503 Slow Down", _error("SlowDown")), StoreError, ("503", "SlowDown")),
    "skewed": (_http("403 Forbidden", _error("RequestTimeTooSkewed")), BadCredentials, ("clock",)),
    "no such bucket": (_http("404 Not Found", _error("NoSuchBucket")), MissingBucket, ("create it",)),
}


def test_a_text_of_the_client_is_never_repeated():
    url = ObjectUrl("az", "c", "k")
    for text in (f"GET http://127.0.0.1/c/k?sig={SECRET} failed", f"<Message>{SECRET}</Message>", SECRET):
        assert SECRET not in str(store_error(url, text, "GenericError"))


def test_a_server_that_is_killed_and_started_again_is_used_again(s3):
    """Stopped for a while: requests wait, and are repeated by the client."""
    registry = Registry(place(s3))
    registry.register("web", b"model", manifest=FACTS)
    os.kill(s3.pid, signal.SIGSTOP)
    timer = threading.Timer(1.0, lambda: os.kill(s3.pid, signal.SIGCONT))
    timer.start()
    try:
        assert registry.promote("web", 1, force=True).number == 2
    finally:
        timer.join()
