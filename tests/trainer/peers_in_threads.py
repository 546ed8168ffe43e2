"""Processes of a training, played by threads, for tests."""

import threading
from dataclasses import replace

import numpy as np

from rankmill.trainer.data.shard import RowShard, span_of
from rankmill.trainer.rounds.train_on_rows import fit


class Stopped(Exception):
    """Another process of the group has failed."""


class Group:
    """``size`` processes that meet at a barrier.  ``events`` counts the calls of all of them."""

    def __init__(self, size):
        self.size, self.given = size, [None] * size
        self.barrier = threading.Barrier(size)
        self.exchanges, self.cells = 0, 0

    def peer(self, number):
        return Peer(self, number)


class Peer:
    """Peers as one of the threads sees them."""

    def __init__(self, group, number):
        self._group, self.number, self.size = group, number, group.size

    def gather(self, values):
        group = self._group
        try:
            group.given[self.number] = values.copy()
            group.barrier.wait(60)
            found = list(group.given)
            if self.number == 0:
                group.exchanges += 1
                group.cells += sum(map(len, found))
            group.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise Stopped from None
        return found

    def add_up(self, values):
        values[:] = np.sum(self.gather(values), axis=0)


def divided(data, parameters, options, cuts, run=fit):
    """Train on ``data``, whose bins are batches of all rows, in one thread for every part between ``cuts``; return all
    results."""
    group = Group(len(cuts) - 1)
    results, failures = [None] * group.size, []

    def own(rows, shard):
        span = span_of(rows.starts, shard)
        return replace(rows, bins=[np.concatenate(list(rows.bins))[span.first : span.last]])

    def work(number):
        shard = RowShard(group.peer(number), tuple(cuts))
        part = replace(data, eval_sets=[(name, own(rows, shard)) for name, rows in data.eval_sets])
        try:
            results[number] = run(part, parameters, replace(options, shard=shard))
        except BaseException as error:
            failures.append(error)
            group.barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(group.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        if not isinstance(failure, Stopped):
            raise failure
    return results, group
