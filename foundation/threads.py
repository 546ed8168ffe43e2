"""Process the items of a list in order on several threads; errors do not depend on the number of threads."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from rankmill.foundation.options import spelled_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator


Item = TypeVar("Item")
Result = TypeVar("Result")


class Failure(NamedTuple):
    """A failed item: its number, from 0, and the error."""

    number: int
    error: Exception


def in_order(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> list[Failure]:
    """Call ``work`` with each of ``items``, in ``threads`` threads; return the failures in the order of items.

    A free thread takes the next item, in order.  After a failure no more items are taken, but running ones are
    finished: the first failure is therefore the same as with a single thread.  The iterator ``items`` may
    fail, too.
    """
    waiting = iter(items)
    taking = threading.Lock()
    failures: list[Failure] = []
    taken = 0
    stopped = False

    def run() -> None:
        nonlocal taken, stopped
        while True:
            with taking:
                if stopped:
                    return
                number = taken
                taken += 1
                try:
                    item = next(waiting)
                except StopIteration:
                    stopped = True
                    return
                except Exception as error:  # any: the caller raises it again
                    stopped = True
                    failures.append(Failure(number, error))
                    return
            try:
                work(item)
            except Exception as error:
                stopped = True
                failures.append(Failure(number, error))

    if threads == 1:
        run()
        return failures
    with ThreadPoolExecutor(threads) as pool:  # left when all threads have ended, also after an interrupt
        try:
            for running in [pool.submit(spelled_alike(run)) for _ in range(threads)]:
                running.result()
        finally:
            stopped = True
    return sorted(failures, key=lambda failure: failure.number)


def for_each(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call ``work`` with each of ``items`` as :func:`in_order` does, and raise the first failure."""
    for failure in in_order(items, work, threads):
        raise failure.error


def results_in_order(
    items: Iterable[Item], work: Callable[[Item], Result], threads: int, most: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each of ``items`` with ``work(item)``, in order.

    ``threads`` threads work; at most ``most`` items are in memory.

    The first failure in the order of items is raised, of ``work`` or of the iterator.  If closed early, it waits
    for the calls that have begun.
    """
    if threads == 1:
        for item in items:
            yield item, work(item)
        return
    coming, ended = iter(items), False
    failure: Exception | None = None
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        while True:
            while not ended and len(waiting) < most:
                try:
                    item = next(coming)
                except StopIteration:
                    ended = True
                except Exception as error:  # any: raised after the results of the items before it
                    ended, failure = True, error
                else:
                    waiting.append((item, pool.submit(spelled_alike(work), item)))
            if not waiting:
                break
            yield waiting[0][0], waiting[0][1].result()  # without a name, which would keep it in memory
            waiting.popleft()
    finally:
        pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield ``items``; a thread makes the next one while the consumer uses the last.

    If closed early, it waits for the item that is being made.
    """
    end, step = object(), spelled_alike(next)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(step, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(step, items, end)
            yield cast("Item", item)
