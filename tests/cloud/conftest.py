"""A server for all tests of a session, started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cloud.servers import PROGRAMS, Server, running

S3 = ("seaweedfs", "ministack", "moto")
HONEST = (*S3, "azurite")
"""Stores that honour If-None-Match."""


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    """The servers that run, by name; `start` adds one."""
    with ExitStack() as stack:
        yield _Running(stack)


class _Running(dict[str, Server]):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, name: str) -> Server:
        pytest.importorskip("obstore")
        try:
            self[name] = self._stack.enter_context(running(name))
        except LookupError as error:
            pytest.skip(str(error))
        return self[name]


@pytest.fixture(params=HONEST)
def server(request: pytest.FixtureRequest, servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """Each store that honours conditional writes and is installed, with its settings in the environment."""
    return reach(servers[request.param], monkeypatch)


@pytest.fixture
def s3(servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """The S3 server that is always installed for tests."""
    return reach(servers["seaweedfs"], monkeypatch)


def reach(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


assert set(HONEST) < set(PROGRAMS)
