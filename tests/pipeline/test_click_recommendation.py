"""What `clicks describe` recommends, against slow twins and simulated logs whose truth is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankmill.pipeline.clicks.models.fit_log import compare_click_models
from rankmill.pipeline.clicks.models.options import ClickFitOptions
from rankmill.pipeline.clicks.propensities import Propensities
from rankmill.pipeline.clicks.recommend import RANKED_WELL, order_by_relevance, recommend
from rankmill.pipeline.clicks.result_lists import LogInMemory
from rankmill.pipeline.clicks.simulate import EXAMINATION, QueriesToShow, SimulatedLog, simulate
from rankmill.pipeline.clicks.simulation_options import ClickSimulation
from tests import naive_clicks as naive
from tests.pipeline.test_click_models import in_two_blocks, log_of

THETA = tuple((np.array(EXAMINATION) / EXAMINATION[0]).tolist())
PBM = Propensities(model="pbm", examination=THETA)
TRUST = Propensities(model="trust", examination=THETA, trust=tuple(0.05 / (k + 1) for k in range(10)))
QUICK = ClickFitOptions(replicates=0)


def of_ranker(noise: float, sessions: int = 30_000, **options: object) -> SimulatedLog:
    """A log of a ranker whose scores are the grades and normal noise; lists of 10 of 20 documents, 200 queries."""
    rng = np.random.default_rng(5)
    start = np.arange(0, 200 * 20 + 1, 20, dtype=np.int64)
    grades = rng.integers(0, 5, start[-1]).astype(np.int32)
    scores = [grades + noise * rng.normal(size=len(grades))]
    options = {"swapped": 0.2, "popularity": "equal", **options}
    return simulate(QueriesToShow(start, grades), scores, ClickSimulation(sessions=sessions, **options), seed=6)


def rows_of(log: LogInMemory) -> list[tuple[int, int, int, int]]:
    """Query, document, rank and click of each impression."""
    (block,) = log.in_memory
    query = np.repeat(block.lists.query, np.diff(block.lists.start))
    return list(
        zip(
            *(each.tolist() for each in (query, block.lists.document, block.lists.rank, block.lists.clicked)),
            strict=True,
        )
    )


@pytest.mark.parametrize("propensities", [PBM, TRUST])
def test_the_order_is_that_of_the_slow_twin_for_any_blocks(propensities):
    log = log_of(2000, queries=15, swapped=0.3).log
    trust = (0.0,) * 10 if propensities.trust is None else propensities.trust
    found = order_by_relevance(log, propensities)
    assert found == pytest.approx(naive.order_by_relevance(rows_of(log), THETA, trust), rel=1e-9)
    assert order_by_relevance(in_two_blocks(log), propensities) == found


def test_a_better_ranker_has_a_higher_correlation_and_a_random_one_none():
    found = [order_by_relevance(of_ranker(noise).log, PBM) for noise in (100.0, 3.0, 1.0, 0.1)]
    assert abs(found[0]) < 0.1
    assert all(b > a for a, b in itertools.pairwise(found))
    assert found[-1] > RANKED_WELL
    for noise, log in (
        (1.0, of_ranker(1.0)),
        (3.0, of_ranker(3.0)),
    ):  # the true relevance of what was shown says the same
        (block,) = log.log.in_memory
        query = np.repeat(block.lists.query, np.diff(block.lists.start))
        weight = np.array(THETA)[block.lists.rank - 1]
        columns = (log.relevance[block.lists.document], -block.lists.rank.astype(float))
        far = [x - (np.bincount(query, weight * x) / np.bincount(query, weight))[query] for x in columns]
        both, one, other = ((weight * a * b).sum() for a, b in ((far[0], far[1]), (far[0], far[0]), (far[1], far[1])))
        assert order_by_relevance(log.log, PBM) == pytest.approx(both / np.sqrt(one * other), abs=0.05), noise


def test_no_correction_where_the_lists_were_in_a_good_order_or_clicks_are_few():
    for noise, expected in ((0.1, "good order"), (3.0, "")):
        log = of_ranker(noise).log
        compared = compare_click_models(log, QUICK, ("dctr", "pbm"))
        found = recommend(log, compared, 10.0)
        assert expected in found.reason
        assert (found.model is None) == bool(expected)
        assert "noisier" in recommend(log, compared, 1.0).reason


def test_a_model_is_doubted_if_relevance_rises_from_rank_to_rank():
    """With few clicks at low ranks their examination is often too small; the slow twin looks at relevance by rank."""
    doubted = believed = 0
    for seed, sessions in itertools.product(range(2), (1_000, 10_000)):
        log = log_of(sessions, queries=300, seed=seed, n_docs=20, swapped=0.1).log
        compared = compare_click_models(log, QUICK)
        for name, fitted in compared.fitted.items():
            found = fitted.propensities
            ranks = len(found.examination)
            trust = found.trust or (0.0,) * ranks
            rises = naive.relevance_rises(rows_of(log), found.examination, trust, 1.2)
            assert (name in compared.doubted) == (name != "dctr" and rises)
            doubted, believed = doubted + (name in compared.doubted), believed + (name not in compared.doubted)
        if any(name not in compared.doubted for name in compared.fitted):
            assert compared.recommended not in compared.doubted
    assert doubted > 0 < believed
