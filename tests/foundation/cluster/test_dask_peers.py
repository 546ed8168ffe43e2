"""Sums and values of many processes: those that each would get from all others, in few messages."""

import queue
import threading

import numpy as np
import pytest

from rankmill.foundation.cluster.dask_peers import gathered, summed_slice


def in_ring(size, work):
    """What ``work(number, pass)`` returns in each of ``size`` threads, and the number of messages of each."""
    boxes = {(one, other): queue.SimpleQueue() for one in range(size) for other in range(size)}
    results, sent = [None] * size, [0] * size

    def passing(number):
        def exchange(ahead, arrays):
            sent[number] += 1
            boxes[number, (number + ahead) % size].put([array.copy() for array in arrays])
            return boxes[(number - ahead) % size, number].get(timeout=60)

        return exchange

    def run(number):
        results[number] = work(number, passing(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, sent


@pytest.mark.parametrize("size", range(1, 18))
def test_each_gets_the_values_of_all(size):
    values = [np.arange(number % 4) + 100 * number for number in range(size)]
    found, sent = in_ring(size, lambda number, exchange: gathered(values[number], size, exchange))
    for number, of_all in enumerate(found):
        for k, array in enumerate(of_all):
            np.testing.assert_array_equal(array, values[(number + k) % size])
    assert set(sent) == {(size - 1).bit_length()}


@pytest.mark.parametrize("size", range(1, 18))
def test_each_gets_the_sum_of_its_slice(size):
    rng = np.random.default_rng(size)
    values = rng.integers(-(2**40), 2**40, (size, size, 3))  # process, slice, cells

    def work(number, exchange):
        return summed_slice([values[number, (number + k) % size] for k in range(size)], exchange)

    found, sent = in_ring(size, work)
    np.testing.assert_array_equal(found, values.sum(axis=0))
    assert set(sent) == {(size - 1).bit_length()}
