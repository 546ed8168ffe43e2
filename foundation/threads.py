"""Process the items of a list in order on several threads; errors do not depend on the number of threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from joblib import Parallel, delayed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator


Item = TypeVar("Item")


class Failure(NamedTuple):
    """What came of an item: its number, from 0, and the error."""

    number: int
    error: Exception


def in_order(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> list[Failure]:
    """Call ``work`` with each of ``items``, in ``threads`` threads; returns the failures, those of the first items first.

    Items are taken one at a time, in their order, by whichever thread is free.  After a failure none is taken any more, but
    those that have been taken are finished; so the first failure is what one thread alone would have met.  Drawing an
    item from ``items`` may fail too.
    """
    waiting = iter(items)
    taking = threading.Lock()
    failures: list[Failure] = []
    taken = 0
    stopped = False

    def run(running: threading.Lock) -> None:
        nonlocal taken, stopped
        with running:
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
                    except Exception as error:  # any: it is raised again by the caller
                        stopped = True
                        failures.append(Failure(number, error))
                        return
                try:
                    work(item)
                except Exception as error:
                    stopped = True
                    failures.append(Failure(number, error))

    if threads == 1:
        run(threading.Lock())
        return failures
    running = [threading.Lock() for _ in range(threads)]
    try:  # threads even where the caller has told joblib to use processes
        Parallel(n_jobs=threads, require="sharedmem")(delayed(run)(held) for held in running)
    finally:  # an interrupt ends Parallel alone: wait for the threads, they use what the caller cleans away
        stopped = True
        for held in running:
            held.acquire()
    return sorted(failures, key=lambda failure: failure.number)


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield ``items``, the next of which is made in a thread while its taker is busy with the last.

    Closed early, it waits for what is being made.
    """
    end = object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield cast("Item", item)
