"""Dask distributed as the engine of a cluster.

Calls are sent as bytes that only workers unpickle, so the scheduler needs no rankmill.  Dask itself retries nothing
here:
a call is bound to one worker, and `rankmill.foundation.cluster.workers` decides what happens when that one is lost.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import platform
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import Any, Self

from rankmill.foundation.cluster.dask_peers import Join, joined
from rankmill.foundation.cluster.duty import Duty, Ended, Unwanted, stopped_when
from rankmill.foundation.cluster.options import local_workers
from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import ClusterUnavailable, InputError, MissingLibrary, WorkerLost

_ANSWER_SECONDS = 15.0
_PATIENCE_SECONDS = 30.0  # without any worker
_START_SECONDS = 120.0  # of local workers: each imports its libraries
_HOST = "127.0.0.1"
_PROFILER = "distributed.worker.profile.enabled"
"""Dask's profiler asks for the frames of all threads 100 times a second.  That can block CPython forever while threads
start and end: observed with 3.11, in a worker that waited in ``sys._current_frames`` and held the interpreter's lock.
"""


_SWITCH = "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"


class DaskEngine:
    """A client of a Dask scheduler; ``stack`` closes it, and its own local cluster if it has one."""

    def __init__(self, client: Any, stack: ExitStack, name: str) -> None:
        self._client, self._stack, self._name = client, stack, name
        self._futures: dict[int, Any] = {}
        self._threads: Mapping[str, int] = {}
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._words: dict[str, queue.SimpleQueue[bytes]] = {}

    @classmethod
    def open(cls, address: str) -> Self:
        """Connect to a scheduler, or start local workers.

        Raises the errors of `rankmill.foundation.cluster.workers.open_cluster`.
        """
        local = local_workers(address)
        try:
            import distributed
        except ImportError:
            raise MissingLibrary(
                f"{address} needs Dask, which is not installed: pip install 'rankmill[dask]'"
            ) from None
        for name in ("distributed", "tornado"):  # we report what happens
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("asyncio").addFilter(_worth_reporting)
        if local:
            return cls._start(address, local)
        try:
            client = distributed.Client(address, timeout=_ANSWER_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterUnavailable(
                f"{address}: no Dask scheduler answers there ({_words(error)}); check the address, or start one with: "
                "dask scheduler"
            ) from error
        stack = ExitStack()
        stack.callback(client.close, timeout=_ANSWER_SECONDS)
        return cls(client, stack, address)

    @classmethod
    def of_client(cls, client: Any) -> Self:
        """Use a connected ``client`` of the caller, which stays open.

        InputError if its workers cannot work together.
        """
        if getattr(client, "asynchronous", False):
            raise InputError(
                "the Dask client is asynchronous; give one that is not, or the address of the scheduler as text"
            )
        address = str(getattr(client.scheduler, "address", "the Dask client"))
        if address.startswith("inproc:"):
            raise InputError(
                f"the workers at {address} are threads of this process; start them as processes: "
                "LocalCluster(processes=True)"
            )
        return cls(client, ExitStack(), address)

    @property
    def name(self) -> str:
        """What the user calls the cluster."""
        return self._name

    @classmethod
    def _start(cls, address: str, local: int) -> Self:
        """Start local workers; only processes with the keys of this one can connect to them."""
        import dask
        import distributed

        threads = max(1, available_cores() // local)
        settings = {  # instead of Dask's settings of the allocator, and of one thread
            "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": threads},
            "distributed.worker.daemon": True,
            _PROFILER: False,
        }
        with ExitStack() as stack:
            stack.enter_context(
                dask.config.set(settings)
            )  # as long as there are workers: those that replace lost ones read it
            cluster = distributed.LocalCluster(
                n_workers=local,
                threads_per_worker=threads,
                processes=True,
                host=_HOST,
                dashboard_address=f"{_HOST}:0",
                security=True,
                memory_limit=0,  # the limits of each task are its own
                silence_logs=logging.CRITICAL,
            )
            stack.callback(cluster.close, timeout=_ANSWER_SECONDS)
            client = distributed.Client(cluster, timeout=_ANSWER_SECONDS, set_as_default=False)
            stack.callback(client.close, timeout=_ANSWER_SECONDS)
            try:
                client.wait_for_workers(local, timeout=_START_SECONDS)
            except TimeoutError as error:
                raise ClusterUnavailable(
                    f"{address}: the workers did not start in {_START_SECONDS:g} seconds"
                ) from error
            return cls(client, stack.pop_all(), address)

    def workers(self) -> Mapping[str, int]:
        """Return the threads of each present worker by its address; ClusterUnavailable if there is no answer."""
        try:
            if self._client.status != "running":
                raise OSError("the connection was lost")  # noqa: TRY301 - the same answer as to other errors
            found = self._client.sync(
                self._client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_SECONDS, asynchronous=False
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            raise ClusterUnavailable(
                f"{self._name}: the scheduler does not answer any more ({_words(error)})"
            ) from error
        self._threads = {
            address: int(facts["nthreads"])
            for address, facts in sorted(found["workers"].items())
            if facts.get("status", "running") == "running"
        }
        return self._threads

    def start(self, call: int, worker: str, duty: Duty, function: Callable[[Any, int], Any], item: Any) -> None:
        """Let ``worker`` check ``duty`` and call ``function(item, threads)``.

        A worker gets one call at a time. All arguments can be pickled.
        """
        sent = pickle.dumps((_work, (duty, function, item, self._threads[worker])))
        future = self._client.submit(_unpickler(), sent, workers=[worker], pure=False, retries=0, priority=-call)
        self._futures[call] = future
        future.add_done_callback(lambda _, call=call: self._ended.put(call))

    def ended(self, seconds: float) -> Sequence[Ended]:
        """Return the calls that have ended; wait for one for at most ``seconds``.

        A call of a lost worker may never end.
        """
        calls = []
        try:
            calls.append(self._ended.get(timeout=seconds))
            while True:
                calls.append(self._ended.get_nowait())
        except queue.Empty:
            pass
        return [self._end(call) for call in calls if call in self._futures]

    def _end(self, call: int) -> Ended:
        future = self._futures.pop(call)
        try:
            if future.status == "error":
                return Ended(call, error=_understood(future.exception(timeout=_ANSWER_SECONDS)))
            if future.status == "finished":
                return Ended(call, result=future.result(timeout=_ANSWER_SECONDS))
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the worker was lost before it has sent the result
        finally:
            future.release()
        return Ended(call, lost=True)

    def forget(self, call: int) -> None:
        """Give up a call: its end is not reported, and a running one is asked to stop."""
        future = self._futures.pop(call, None)
        if future is not None and self._client.status == "running":
            try:
                future.cancel(force=True)
            except (OSError, TimeoutError, asyncio.CancelledError):
                future.release()

    def compute(self, function: Callable[..., Any], calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        """Return ``function(*arguments, *values)`` for each (arguments, values) of ``calls``.

        The values are delayed computations of Dask.

        Dask chooses the workers, and repeats what is lost with one.  A call may be made twice, also at the same time.

        Raises
        ------
        WorkerLost
            All workers were lost, or several of them with the same call.
        ClusterUnavailable
            The scheduler does not answer any more.
        """
        from dask import delayed

        call = delayed(_unpickler(), pure=False)
        futures = self._client.compute(
            [call(pickle.dumps((function, tuple(given))), *values) for given, values in calls]
        )
        try:
            return [self._result_of(future) for future in futures]  # the first failure in order, whatever ends first
        finally:
            if self._client.status == "running":
                self._client.cancel([future for future in futures if not future.done()], force=True)

    def _result_of(self, future: Any) -> Any:
        """Wait for the result; the errors of :meth:`compute`, and that of the call."""
        from distributed import KilledWorker

        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return future.result(timeout=1.0)
            except TimeoutError:
                if future.status == "error":  # the call's own
                    raise
                if self.workers():
                    until = time.monotonic() + _PATIENCE_SECONDS
                elif time.monotonic() > until:
                    raise WorkerLost(f"all workers of {self._name} are gone; run the same again") from None
            except KilledWorker as error:
                raise WorkerLost(
                    f"several workers of {self._name} were lost, one after another, with the same part of a DataFrame,"
                    " perhaps for lack of memory; run the same again"
                ) from error
            except CancelledError:
                self.workers()  # raises if the scheduler is gone
                raise WorkerLost(f"{self._name}: a computation was cancelled; run the same again") from None
            except (ModuleNotFoundError, AttributeError) as error:
                raise _understood(error) from None

    def join(self) -> Join:
        """Return the function by which workers join a group; it can be pickled."""
        return joined

    def words(self, group: str) -> Sequence[bytes]:
        """Return the messages of peers of ``group`` since the last call; the first call begins to listen."""
        if group not in self._words:
            heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            self._unsubscribe()
            self._words = {group: heard}  # one group at a time
            self._client.subscribe_topic(group, lambda event: heard.put(event[1]))
        found = []
        try:
            while True:
                found.append(self._words[group].get_nowait())
        except queue.Empty:
            return found

    def _unsubscribe(self) -> None:
        for group in self._words:
            if self._client.status == "running":
                self._client.unsubscribe_topic(group)

    def close(self) -> None:
        """Disconnect; end local workers.  A client of the caller stays open."""
        self._unsubscribe()
        self._stack.close()


def _unpickler() -> Callable[..., Any]:
    """Return a function that is sent by its code, not by its name: the scheduler unpickles it without rankmill."""

    def unpickle_and_call(sent: bytes, *values: Any) -> Any:
        import pickle

        function, arguments = pickle.loads(sent)  # noqa: S301 - from the caller
        return function(*arguments, *values)

    return unpickle_and_call


def _work(duty: Duty, function: Callable[[Any, int], Any], item: Any, threads: int) -> Any:
    """Run a call in a worker."""
    import dask
    from distributed import get_worker

    if dask.config.get(_PROFILER):
        raise InputError(
            f"the worker on {platform.node()} has Dask's profiler, which can block it forever; start workers with"
            f" {_SWITCH} in their environment"
        )
    worker = get_worker()
    key = worker.get_current_task()

    def unwanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state != "executing"

    with stopped_when(unwanted):
        try:
            duty.check()
            return function(item, threads)
        except Unwanted:
            return None


def _understood(error: BaseException) -> BaseException:
    """Return the error of a call; that of a worker without this rankmill as an InputError."""
    if isinstance(error, ModuleNotFoundError | AttributeError) and "rankmill" in str(error):
        return InputError(
            f"a worker has no rankmill, or another version of it ({_words(error)}); install the same one on all "
            "machines"
        )
    return error


def _worth_reporting(record: logging.LogRecord) -> bool:
    """Whether a message of asyncio is about anything else than a result lost with its worker.

    Dask's client leaves such messages behind.
    """
    return not (record.exc_info and type(record.exc_info[1]).__name__ == "AllExit")


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].removesuffix(": ")
