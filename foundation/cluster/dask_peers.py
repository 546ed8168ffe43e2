"""Peers that are workers of a Dask cluster.

Every worker opens a connection to each other one, and sends values without waiting for an answer.  What arrives is put
into a mailbox by the worker's event loop, while the calling thread waits for it::

    thread of worker a     loop of a                 loop of b           thread of worker b
    gather(values) ------> write to b ------------> mailbox[3, a] -----> gather returns
                           mailbox[3, b] <--------- write to a <-------- gather(values)
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.cluster.duty import stopper

_OPERATION = "rankmill-values"
_GREETING, _READY = -1, "ready"  # sent in place of an exchange, and its answer
_GREET_SECONDS = 0.05
_CONNECT_SECONDS = 30.0
_LOOK_SECONDS = 0.1  # between looks at whether the result is still wanted
_LIFE_SECONDS = 10.0  # between signs of life
_LOSS_SECONDS = 15.0  # in which the caller notices that a worker is lost
_PATIENCE_SECONDS = 30.0  # before a line says which worker is waited for
_SLICED_CELLS = 8192  # with more than two workers, sums of fewer cells are not worth a second exchange


class _Mailbox:
    """Values that have arrived in this process for one group."""

    def __init__(self) -> None:
        self.arrived: dict[tuple[int, int], Any] = {}  # by number of the exchange, and sender
        self.changed = threading.Condition()

    def put(self, exchange: int, sender: int, values: Any) -> None:
        with self.changed:
            self.arrived[exchange, sender] = values
            self.changed.notify_all()


_mailboxes: dict[str, _Mailbox] = {}
_left: set[str] = set()  # groups that this process has left: what still arrives for them is dropped


def _receive(token: str, exchange: int, sender: int, lengths: Sequence[int], values: Any) -> str:
    """Handle a message of another worker, in the loop of this one, which may come before this one has joined."""
    if token not in _left and exchange != _GREETING:
        _mailboxes.setdefault(token, _Mailbox()).put(exchange, sender, (lengths, values))
    return _READY


Pass = Callable[[int, Sequence[npt.NDArray[Any]]], list[npt.NDArray[Any]]]
"""Sends arrays to the process that is some numbers ahead in the ring, and returns those of the process as far behind.
"""


def gathered(values: npt.NDArray[Any], size: int, exchange: Pass) -> list[npt.NDArray[Any]]:
    """Return the ``values`` of this process and of the ``size`` - 1 after it in the ring.

    Bruck's steps (IEEE TPDS 8, 1997): a process has the values of the next 1, 2, 4, .. and gets as many more from the
    one that follows these.  So each of 16 processes sends 4 messages, not 15.
    """
    found = [values]
    while (step := len(found)) < size:
        found += exchange(-step, found[: size - step])
    return found


def summed_slice(slices: list[npt.NDArray[Any]], exchange: Pass) -> npt.NDArray[Any]:
    """Return the sum over all processes of the first of ``slices``.

    The slices are for this process and those after it in the ring.

    The steps of `gathered`, backwards: what a process has for others goes half of the way, and is added up there.
    """
    while len(slices) > 1:
        step = 1 << ((len(slices) - 1).bit_length() - 1)
        others = exchange(step, slices[step:])
        slices = [mine + other for mine, other in zip(slices, others, strict=False)] + slices[len(others) : step]
    return slices[0]


class DaskPeers:
    """The processes of one computation, as seen by process ``number`` (0 .. ``size`` - 1); :func:`joined` creates it.

    All processes make the same calls in the same order.  A call returns when each has made it.
    """

    def __init__(self, token: str, number: int, addresses: Sequence[str], worker: Any) -> None:
        self.number, self.size = number, len(addresses)
        self.exchanges, self.bytes_sent = 0, 0
        self.seconds_waited = 0.0
        self._token, self._addresses, self._worker = token, addresses, worker
        self._loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop
        self._box = _mailboxes.setdefault(token, _Mailbox())
        self._queues: list[asyncio.Queue[Any]] = []
        self._writers: list[asyncio.Task[None]] = []
        self._stop = stopper()
        self._next_look = 0.0
        self._cut_off = ""  # the address of a worker that could not be reached

    async def connect(self) -> None:
        """Start to write to the others."""
        for other, address in enumerate(self._addresses):
            queue: asyncio.Queue[Any] = asyncio.Queue()
            self._queues.append(queue)
            if other != self.number:
                self._writers.append(asyncio.create_task(self._write(address, queue)))

    async def _write(self, address: str, queue: asyncio.Queue[Any]) -> None:
        """Write what is put into ``queue``; note if the other one cannot be reached."""
        from distributed.core import connect

        try:
            comm = await connect(address, timeout=_CONNECT_SECONDS, **self._worker.connection_args)
        except OSError:
            self._cut_off = address
            return
        try:
            # a worker that has not joined any group knows no such messages, and would drop them
            await comm.write(self._message(_GREETING, None))
            while await comm.read() != _READY:
                await asyncio.sleep(_GREET_SECONDS)
                await comm.write(self._message(_GREETING, None))
            while (message := await self._next(queue)) is not None:
                await comm.write(message)
            await comm.close()  # after all is sent, which abort would drop
        except asyncio.CancelledError:
            raise
        except Exception:  # after any error the other process gets nothing more
            self._cut_off = address
        finally:
            comm.abort()

    async def _next(self, queue: asyncio.Queue[Any]) -> dict[str, Any] | None:
        """Return the next message to send.

        After a long pause it is a keep-alive message, which fails on a dead connection.
        """
        try:
            found: dict[str, Any] | None = await asyncio.wait_for(queue.get(), _LIFE_SECONDS)
        except TimeoutError:
            return {**self._message(_GREETING, None), "reply": False}
        return found

    async def disconnect(self, *, at_once: bool) -> None:
        """End all connections, unless ``at_once`` after what is still to be written."""
        for queue in self._queues:
            queue.put_nowait(None)
        if self._writers:
            _, late = await asyncio.wait(self._writers, timeout=0.0 if at_once else _CONNECT_SECONDS)
            for task in late:
                task.cancel()
            if not at_once and (late or self._cut_off):
                raise ConnectionError(f"worker {self._addresses[self.number]} could not send all to the others")

    def notify(self, word: bytes) -> None:
        """Send ``word`` to the caller of the computation."""
        self._worker.log_event(self._token, word)

    def gather(self, values: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        """Return the ``values`` (m,) of every process, by its number; m may differ, the dtype not."""
        self._look()
        found = gathered(values, self.size, self._pass)
        return [found[(number - self.number) % self.size] for number in range(self.size)]

    def add_up(self, values: npt.NDArray[np.int64]) -> None:
        """Replace ``values`` (m,) by the sums over all processes; m is the same in each."""
        if self.size <= 2 or len(values) < _SLICED_CELLS:
            values[:] = np.sum(self.gather(values), axis=0)
            return
        self._look()
        cuts = [len(values) * k // self.size for k in range(self.size + 1)]
        slices = [values[first:last] for first, last in itertools.pairwise(cuts)]
        own = summed_slice(slices[self.number :] + slices[: self.number], self._pass)
        np.concatenate(self.gather(own), out=values)

    def _look(self) -> None:
        """Stop if the result is not wanted any more."""
        if time.perf_counter() >= self._next_look:  # also if no peer is waited for
            self._stop()
            self._next_look = time.perf_counter() + _LOOK_SECONDS

    def _pass(self, ahead: int, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Send ``arrays`` to the process ``ahead`` of this one, and return what the one as far behind has sent here."""
        began = time.perf_counter()
        exchange = self.exchanges
        self.exchanges += 1
        sent = b"".join(np.ascontiguousarray(each).data for each in arrays)
        self.bytes_sent += len(sent)
        to = (self.number + ahead) % self.size
        self._loop.call_soon_threadsafe(self._send, exchange, to, [len(each) for each in arrays], sent)
        lengths, received = self._wait(exchange, (self.number - ahead) % self.size)
        self.seconds_waited += time.perf_counter() - began
        found = np.frombuffer(received, arrays[0].dtype).copy()  # kernels are compiled for writeable arrays
        return np.split(found, np.cumsum(lengths)[:-1])

    def _send(self, exchange: int, to: int, lengths: Sequence[int], values: bytes) -> None:
        from distributed.protocol import to_serialize

        message = self._message(exchange, to_serialize(values), lengths)
        self._queues[to].put_nowait({**message, "reply": False})

    def _message(self, exchange: int, values: Any, lengths: Sequence[int] = ()) -> dict[str, Any]:
        return {
            "op": _OPERATION,
            "token": self._token,
            "exchange": exchange,
            "sender": self.number,
            "values": values,
            "lengths": list(lengths),
        }

    def _wait(self, exchange: int, sender: int) -> tuple[Sequence[int], Any]:
        """Return the lengths and the values of an exchange that process ``sender`` sends.

        Raises Unwanted if the result is no longer needed, which is so soon after a worker was lost, and
        ConnectionError if one cannot be reached that is not lost.
        """
        began = time.monotonic()
        report_at = began + _PATIENCE_SECONDS
        with self._box.changed:
            while (exchange, sender) not in self._box.arrived:
                if not self._box.changed.wait(_LOOK_SECONDS):
                    self._stop()
                    if self._cut_off and time.monotonic() > began + _LOSS_SECONDS:
                        raise ConnectionError(f"worker {self._addresses[self.number]} cannot reach {self._cut_off}")
                    if time.monotonic() > report_at:
                        report_at += _PATIENCE_SECONDS
                        late = self._addresses[sender]
                        self.notify(pickle.dumps(f"worker {self._addresses[self.number]} waits for {late}"))
            found: tuple[Sequence[int], Any] = self._box.arrived.pop((exchange, sender))
            return found


Join = Callable[[str, int, Sequence[str]], AbstractContextManager[DaskPeers]]
"""Called in a worker with the name of a group, its number there and all workers of the group."""


@contextmanager
def joined(token: str, number: int, addresses: Sequence[str]) -> Iterator[DaskPeers]:
    """Join the group ``token`` as process ``number``, in a task of the Dask worker ``addresses[number]``."""
    from distributed import get_worker

    worker = get_worker()
    worker.handlers.setdefault(_OPERATION, _receive)
    peers = DaskPeers(token, number, addresses, worker)
    loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop
    asyncio.run_coroutine_threadsafe(peers.connect(), loop).result(_CONNECT_SECONDS)
    done = False
    try:
        yield peers
        done = True
    finally:
        asyncio.run_coroutine_threadsafe(peers.disconnect(at_once=not done), loop).result(2 * _CONNECT_SECONDS)
        _left.add(token)
        _mailboxes.pop(token, None)
