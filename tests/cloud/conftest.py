"""A server for all tests of a session, started when the first test asks for it."""

from contextlib import ExitStack

import pytest

from tests.cloud.servers import PROGRAMS, Server, running

S3 = ("seaweedfs", "ministack", "moto")
HONEST = (*S3, "azurite")
"""Stores that honour If-None-Match."""


@pytest.fixture(scope="session")
def servers():
    """The servers that run, by name; `start` adds one."""
    with ExitStack() as stack:
        yield _Running(stack)


class _Running(dict[str, Server]):
    def __init__(self, stack):
        super().__init__()
        self._stack = stack

    def __missing__(self, name):
        pytest.importorskip("obstore")
        try:
            self[name] = self._stack.enter_context(running(name))
        except LookupError as error:
            pytest.skip(str(error))
        return self[name]


@pytest.fixture(params=HONEST)
def server(request, servers, monkeypatch):
    """Each store that honours conditional writes and is installed, with its settings in the environment."""
    return reach(servers[request.param], monkeypatch)


@pytest.fixture
def s3(servers, monkeypatch):
    """The S3 server that is always installed for tests."""
    return reach(servers["seaweedfs"], monkeypatch)


def reach(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


assert set(HONEST) < set(PROGRAMS)
