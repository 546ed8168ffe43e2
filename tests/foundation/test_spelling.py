"""Messages spell options as their caller does, whichever thread or process makes them."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from rankmill.foundation.options import spelled, spelled_alike, spelled_for
from rankmill.foundation.threads import ahead, in_order, results_in_order
from tests.waiting import LIMIT

SPELLINGS = {"command line": "--max-rejects", "file": "max_rejects", "Python": "max_rejects", "f": "f(max_rejects)"}


def test_callers_at_the_same_time_have_spellings_of_their_own() -> None:
    together = Barrier(len(SPELLINGS))

    def said(place: str) -> str:
        with spelled_for(place):
            together.wait(LIMIT)
            return spelled("max_rejects")

    with ThreadPoolExecutor(len(SPELLINGS)) as threads:
        assert [*threads.map(said, SPELLINGS)] == [*SPELLINGS.values()]
    assert spelled("max_rejects") == SPELLINGS["Python"]


@pytest.mark.parametrize("place", SPELLINGS)
def test_what_works_for_a_caller_spells_as_the_caller(place: str) -> None:
    said: list[str] = []
    with spelled_for(place):
        assert not in_order(["max_rejects"] * 4, lambda name: said.append(spelled(name)), 2)
        said += [found for _, found in results_in_order(["max_rejects"] * 4, spelled, 2, most=2)]
        said += ahead(spelled(name) for name in ["max_rejects"] * 2)
        sent = pickle.dumps(spelled_alike(spelled))
    assert [*said, pickle.loads(sent)("max_rejects")] == [SPELLINGS[place]] * 11
