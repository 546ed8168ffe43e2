"""Click models against slow twins and against what is true of simulated logs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from rankmill.clicks.models.click_model import NotIdentified, fit_click_model
from rankmill.clicks.models.counts import ClickCounts, count_clicks, deepest_rank
from rankmill.clicks.models.fit_log import compare_click_models, fit_clicks
from rankmill.clicks.options import ClickFitOptions, ClickSimulation
from rankmill.clicks.recommend import RANKED_WELL, order_by_relevance, recommend
from rankmill.clicks.result_lists import LogBlock, LogInMemory
from rankmill.clicks.simulate import EXAMINATION, QueriesToShow, SimulatedLog, simulate
from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.pipeline.judgments.propensities import Propensities, read_propensities, write_propensities
from tests import naive_clicks as naive
from tests.refusals import refused

TRUTH = np.array(EXAMINATION) / EXAMINATION[0]
QUICK = ClickFitOptions(replicates=0)


def log_of(sessions: int, *, queries: int = 100, seed: int = 0, n_docs: int = 30, **options: object) -> SimulatedLog:
    """Simulated sessions of a logging ranker that is noisy."""
    rng = np.random.default_rng(seed)
    start = np.concatenate([[0], np.cumsum(rng.integers(2, n_docs, queries))]).astype(np.int64)
    grades = rng.integers(0, 5, start[-1]).astype(np.int32)
    scores = [grades + rng.normal(0, 2, len(grades))]
    return simulate(QueriesToShow(start, grades), scores, ClickSimulation(sessions=sessions, **options), seed=seed + 1)


def in_two_blocks(log: LogInMemory) -> LogInMemory:
    """The same log, its queries in two blocks."""
    (block,) = log.in_memory
    lists = block.lists
    half = len(block.queries) // 2
    cut_list, cut_document = np.searchsorted(lists.query, half), block.document_start[half]
    cut = lists.start[cut_list]
    one = lists._replace(
        start=lists.start[: cut_list + 1],
        **{name: getattr(lists, name)[:cut_list] for name in ("query", "session", "policy")},
        **{name: getattr(lists, name)[:cut] for name in ("document", "rank", "clicked")},
    )
    other = lists._replace(
        start=lists.start[cut_list:] - cut,
        query=lists.query[cut_list:] - half,
        **{name: getattr(lists, name)[cut_list:] for name in ("session", "policy")},
        document=lists.document[cut:] - cut_document,
        **{name: getattr(lists, name)[cut:] for name in ("rank", "clicked")},
    )
    starts = block.document_start
    first = LogBlock(one, block.queries[:half], block.documents[:cut_document], starts[: half + 1])
    second = LogBlock(other, block.queries[half:], block.documents[cut_document:], starts[half:] - cut_document)
    return LogInMemory((first, second), log.policies)


def lists_in(
    log: LogInMemory, weight_of: np.ndarray | None = None
) -> list[tuple[list[int], list[int], list[int], int]]:
    (block,) = log.in_memory
    columns = [each.tolist() for each in (block.lists.document, block.lists.rank, block.lists.clicked)]
    starts = block.lists.start.tolist()
    weights = np.ones(len(starts) - 1, int) if weight_of is None else weight_of
    return [
        (*(column[a:b] for column in columns), w)
        for (a, b), w in zip(itertools.pairwise(starts), weights.tolist(), strict=True)
    ]


def as_table(counts: ClickCounts) -> dict[tuple[int, int, int], tuple[float, float]]:
    keys = zip(counts.document.tolist(), counts.rank.tolist(), counts.last.tolist(), strict=True)
    return dict(zip(keys, zip(counts.shown.tolist(), counts.clicked.tolist(), strict=True), strict=True))


def test_counts_are_those_of_the_slow_twin_in_any_blocks():
    log = log_of(800, swapped=0.5, randomised=0.2, eta=0.3).log
    weights = np.random.default_rng(1).integers(0, 4, 800).astype(float)
    ones, weighted = count_clicks(log, 10, [lambda lists: np.ones(len(lists.query)), lambda _: weights])
    assert as_table(ones) == naive.counts_of(lists_in(log))
    assert as_table(weighted) == naive.counts_of(lists_in(log, weights.astype(int)))
    keys = np.stack([ones.document, ones.rank, ones.last])
    assert np.array_equal(np.lexsort(keys[::-1]), np.arange(keys.shape[1]))
    (split,) = count_clicks(in_two_blocks(log), 10)
    assert as_table(split) == as_table(ones)
    (shallow,) = count_clicks(log, 3)
    assert as_table(shallow) == {key: row for key, row in as_table(ones).items() if key[1] <= 3}
    assert deepest_rank(log) == 10
    shown = np.bincount(ones.document, ones.shown)
    (often,) = count_clicks(log, 10, least_shown=30)
    assert 0 < len(as_table(often)) < len(as_table(ones))
    assert as_table(often) == {key: row for key, row in as_table(ones).items() if shown[key[0]] >= 30}
    assert often.documents == ones.documents


def rows_for(name: str, counts: ClickCounts) -> list[tuple[int, int, float, float]]:
    """Rows of the model with its cells, as the model is defined."""
    cell_of = {
        "pbm": lambda k, _: k - 1,
        "ubm": lambda k, last: (k - 1) * (counts.ranks + 1) + last,
        "dcm": lambda k, last: 0 if last == 0 else last if k == last + 1 else None,
        "cascade": lambda _, last: 0 if last == 0 else None,
    }[name]
    rows = ((d, cell_of(k, last), n, c) for (d, k, last), (n, c) in as_table(counts).items())
    return [row for row in rows if row[1] is not None]


@pytest.mark.parametrize("name", ["pbm", "ubm", "dcm", "cascade"])
def test_the_fit_is_where_slow_em_ends(name):
    (counts,) = count_clicks(log_of(2000, queries=3, n_docs=6, randomised=1.0, user_model="ubm", eta=0.5).log, 3)
    cells = {"pbm": 3, "ubm": 12, "dcm": 3, "cascade": 1}[name]
    free = [name in {"pbm", "ubm"} or c > 0 for c in range(cells)]
    theta, gamma, trace = naive.expectation_maximisation(rows_for(name, counts), free, 3000)
    assert all(later >= before - 1e-9 for before, later in itertools.pairwise(trace))
    model = fit_click_model(name, counts, ClickFitOptions(tolerance=1e-9))
    assert model.log_likelihoods[-1] == pytest.approx(trace[-1], abs=1e-4)
    if name == "pbm":
        np.testing.assert_allclose(model.by_rank, np.array(theta) / theta[0], rtol=1e-3)
    elif name == "ubm":
        expected = np.array(theta).reshape(3, 4) / theta[0]
        np.testing.assert_allclose(model.examination[np.tril_indices(3)], expected[np.tril_indices(3)], rtol=1e-3)
    elif name == "dcm":
        np.testing.assert_allclose(model.continuation[:2], theta[1:], rtol=1e-3)
    shown = counts.by_document(counts.shown) > 0
    np.testing.assert_allclose(model.relevance[shown], np.array(gamma)[shown] * theta[0], rtol=2e-3, atol=1e-6)


def test_trust_is_where_slow_em_ends():
    log = log_of(20_000, queries=2, n_docs=6, randomised=1.0, user_model="trust", eta=0.5).log
    (counts,) = count_clicks(log, 3)
    table: dict[tuple[int, int], tuple[float, float]] = {}
    for (d, k, _), (n, c) in as_table(counts).items():
        shown, clicked = table.get((d, k - 1), (0.0, 0.0))
        table[d, k - 1] = shown + n, clicked + c
    alpha, beta, total = naive.affine_maximisation([(*key, *row) for key, row in sorted(table.items())], 3, 20_000)
    model = fit_click_model("trust", counts, ClickFitOptions(tolerance=1e-9))
    assert model.converged
    assert model.log_likelihoods[-1] >= total - 1e-3
    np.testing.assert_allclose(model.by_rank, alpha, rtol=0.01)
    np.testing.assert_allclose(model.trust, beta, atol=0.01)


def test_trust_of_users_is_found():
    simulated = log_of(300_000, queries=40, randomised=0.5, user_model="trust")
    (counts,) = count_clicks(simulated.log, 5)
    model = fit_click_model("trust", counts)
    users = simulated.users
    theta = users.examination[:5, 0]
    alpha, beta = theta * users.slope[:5], theta * users.floor[:5]
    np.testing.assert_allclose(model.by_rank, alpha / alpha[0], rtol=0.1)
    np.testing.assert_allclose(model.trust, beta - alpha * (beta / alpha).min(), atol=0.03)


def test_many_documents_shown_a_few_times_do_not_bias_examination():
    simulated = log_of(200_000, queries=4000, swapped=0.5)
    (counts,) = count_clicks(simulated.log, 5)
    assert np.median(counts.by_document(counts.shown)) < 50
    np.testing.assert_allclose(fit_click_model("pbm", counts).by_rank, TRUTH[:5], rtol=0.06)


@pytest.mark.parametrize("user_model", ["pbm", "dcm"])
def test_the_likelihood_never_falls_and_chances_stay_chances(user_model):
    (counts,) = count_clicks(log_of(3000, queries=20, randomised=0.5, user_model=user_model, eta=0.5).log, 6)
    for name in ("pbm", "ubm", "dcm", "trust", "allpairs"):
        model = fit_click_model(name, counts)
        trace = np.array(model.log_likelihoods)
        assert len(trace) > 5
        assert (np.diff(trace) >= -1e-8 * abs(trace[0])).all()
        assert np.nanmax(model.relevance) <= 1


def test_pairs_of_ranks_are_those_of_the_slow_twin():
    (counts,) = count_clicks(log_of(1500, queries=4, n_docs=8, randomised=1.0, eta=0.5).log, 4)
    table: dict[tuple[int, int], tuple[float, float]] = {}
    for (d, k, _), (n, c) in as_table(counts).items():
        shown, clicked = table.get((d, k), (0.0, 0.0))
        table[d, k] = shown + n, clicked + c
    pairs = naive.pairs_of_ranks(table)
    number = {pair: i for i, pair in enumerate(sorted({(min(p), max(p)) for p in pairs}))}
    rows = [(number[min(k, o), max(k, o)], k - 1, c + s, c) for (k, o), (c, s) in sorted(pairs.items())]
    theta, _, _ = naive.expectation_maximisation(rows, [True] * 4, 4000)
    model = fit_click_model("allpairs", counts, ClickFitOptions(tolerance=1e-10))
    np.testing.assert_allclose(model.by_rank, np.array(theta) / theta[0], rtol=2e-3)


@pytest.fixture(scope="module")
def million() -> SimulatedLog:
    return log_of(1_000_000, queries=300, swapped=0.5, randomised=0.1)


def test_examination_is_found_within_five_percent_at_a_million_sessions(million):
    (counts,) = count_clicks(million.log, 10)
    for name, tolerance in (("pbm", 0.05), ("allpairs", 0.08)):
        np.testing.assert_allclose(fit_click_model(name, counts).by_rank, TRUTH, rtol=tolerance)
    random = fit_clicks(million.log, "randomised", replace(QUICK, policy="random"))
    np.testing.assert_allclose(random.propensities.examination, TRUTH, rtol=0.08)  # a tenth of the lists
    model = fit_click_model("pbm", counts)
    often = counts.by_document(counts.shown) > 5000
    np.testing.assert_allclose(model.relevance[often], EXAMINATION[0] * million.relevance[often], atol=0.08)


def test_other_users_are_found_too():
    dcm = log_of(200_000, user_model="dcm", randomised=0.2, queries=50)
    model = fit_click_model("dcm", count_clicks(dcm.log, 5)[0])
    np.testing.assert_allclose(model.continuation[:4], dcm.users.continuation[:4], rtol=0.07)
    ubm = log_of(200_000, user_model="ubm", randomised=0.5, queries=50)
    found, truth = (
        fit_click_model("ubm", count_clicks(ubm.log, 4)[0]).examination,
        ubm.users.examination / EXAMINATION[0],
    )
    np.testing.assert_allclose(found[np.tril_indices(4)], truth[np.tril_indices(4)], rtol=0.1)
    cascade = log_of(200_000, user_model="cascade", randomised=0.2)
    (counts,) = count_clicks(cascade.log, 10)
    often = np.bincount(counts.document[counts.last == 0], counts.shown[counts.last == 0], counts.documents) > 2000
    relevance = fit_click_model("cascade", counts).relevance
    np.testing.assert_allclose(relevance[often], cascade.relevance[often], atol=0.06)


@pytest.mark.parametrize("user_model", ["pbm", "dcm", "ubm", "cascade"])
def test_the_recommended_model_is_that_of_the_users(user_model):
    compared = compare_click_models(log_of(25_000, user_model=user_model, randomised=0.2).log, QUICK)
    assert compared.recommended == user_model


def test_figures_of_held_out_sessions_are_those_of_the_slow_twin():
    log = log_of(4000, queries=5, n_docs=8, user_model="dcm", randomised=1.0, eta=0.5).log
    for name, go_on in (("dcm", None), ("pbm", 1.0), ("cascade", 0.0), ("dctr", 1.0)):
        held_out = fit_clicks(log, name, replace(QUICK, held_out=0.5)).propensities.held_out
        assert held_out is not None
        # the figures come from a fit to the other sessions; fit those here, and predict list by list
        (block,) = log.in_memory
        held = np.array([naive.random_bits(int(h), 1) >> 1 < 2**62 for h in block.lists.session])
        (counts,) = count_clicks(log, deepest_rank(log), [lambda _, held=held: 1.0 - held])
        model = fit_click_model(name, counts)
        total, n = 0.0, 0
        for (documents, ranks, clicks, _), chosen in zip(lists_in(log), held.tolist(), strict=True):
            if chosen:
                chances = naive.predictions(
                    ranks,
                    clicks,
                    [float(model.shrunken[d]) for d in documents],
                    lambda k, last, m=model: float(m.examination[k - 1, last]),
                    lambda k, m=model, g=go_on: float(m.continuation[k - 1]) if g is None else g,
                )
                for chance, click in zip(chances, clicks, strict=True):
                    p = min(max(chance, 1e-6), 1 - 1e-6)
                    total += math.log(p if click else 1 - p)
                    n += 1
        assert held_out.impressions == n
        assert held_out.log_likelihood == pytest.approx(total / n, rel=1e-4)


def test_a_log_without_swaps_is_refused_and_the_ranks_are_named():
    log = log_of(5000).log
    for name in ("pbm", "ubm", "trust", "allpairs"):
        with refused(NotIdentified, name, 2, 3, 10, "swapped"):
            fit_clicks(log, name, QUICK)
    compared = compare_click_models(log, QUICK)
    assert compared.refused.keys() == {"pbm", "ubm", "trust", "allpairs"}
    assert compared.fitted.keys() == {"dctr", "cascade", "dcm"}


def test_a_log_with_swaps_at_the_top_only_names_the_others():
    counts = count_clicks(log_of(20_000, swapped=1.0).log, 5)[0]
    kept = np.ones(len(counts.rank), dtype=bool)
    home = np.full(counts.documents, 9)
    np.minimum.at(home, counts.document, counts.rank)
    kept &= (home[counts.document] < 3) == (counts.rank < 3)  # nothing is shown both in 1 to 2 and in 3 to 5
    cut = replace(
        counts, **{name: getattr(counts, name)[kept] for name in ("document", "rank", "last", "shown", "clicked")}
    )
    with refused(NotIdentified, "3, 4, 5", "rank 1", "ranks 2"):
        fit_click_model("pbm", cut)
    assert fit_click_model("pbm", count_clicks(log_of(20_000, swapped=1.0).log, 2)[0]).by_rank[1] < 1


def test_refusals():
    log = log_of(500, swapped=0.5).log
    with refused(InputError, "policy", "'logger'", "'random'"):
        fit_clicks(log, "randomised", QUICK)
    with refused(InputError, "'nobody'", "'logger'"):
        fit_clicks(log, "randomised", replace(QUICK, policy="nobody"))
    with refused(NotIdentified, "randomised", "rank 1"):
        fit_clicks(log, "randomised", replace(QUICK, policy="random"))  # no list in random order
    with refused(InputError, "no result list"):
        fit_clicks(LogInMemory(()), "pbm")
    alike = QueriesToShow(np.arange(0, 41, 8, dtype=np.int64), np.full(40, 2, dtype=np.int32))
    alike_log = simulate(alike, [np.arange(40.0)], ClickSimulation(sessions=20_000, randomised=1.0)).log
    with refused(NotIdentified, "trust", "hardly differ"):
        fit_clicks(alike_log, "trust", QUICK)
    clickless = log_of(50, click_noise=0.0, list_length=1).log
    (block,) = clickless.in_memory
    none = replace(block, lists=block.lists._replace(clicked=np.zeros_like(block.lists.clicked)))
    with refused(NotIdentified, "dctr", "no click"):
        fit_clicks(LogInMemory((none,)), "dctr", QUICK)


def test_the_file_holds_what_was_fitted(tmp_path):
    log = log_of(3000, queries=10, randomised=1.0).log
    for name in ("pbm", "dcm", "ubm"):
        propensities = fit_clicks(log, name, ClickFitOptions(replicates=10)).propensities
        write_propensities(tmp_path / name, propensities)
        assert read_propensities(tmp_path / name) == propensities
        write_propensities(
            tmp_path / "again", fit_clicks(in_two_blocks(log), name, ClickFitOptions(replicates=10)).propensities
        )
        assert (tmp_path / "again").read_bytes() == (tmp_path / name).read_bytes()


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "p.json"
    with refused(InputError, path, "no such file"):
        read_propensities(path)
    good = '{"examination":[1.0,0.5],"format":1,"model":"pbm"}'
    for text in (
        good.replace("0.5", "0.0"),
        good.replace("[1.0,0.5]", "[]"),
        good[:-1] + ',"trust":[0.1]}',
        good.replace(":1,", ":2,"),
        good[:9],
    ):
        path.write_text(text)
        with refused(IntegrityError, path):
            read_propensities(path)
    path.write_text(good)
    assert read_propensities(path).examination == (1.0, 0.5)


def test_intervals_hold_the_estimate_and_narrow_with_sessions():
    widths = []
    for sessions in (3000, 30_000):
        found = fit_clicks(
            log_of(sessions, queries=20, randomised=0.5).log, "pbm", ClickFitOptions(replicates=20)
        ).propensities
        assert found.low is not None
        assert found.high is not None
        assert found.low[0] == found.high[0] == 1.0
        assert all(a <= b <= c for a, b, c in zip(found.low, found.examination, found.high, strict=True))
        widths.append(np.subtract(found.high, found.low)[1:].mean())
    assert widths[1] < 0.5 * widths[0]


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say():
    hits, options = [], ClickFitOptions(replicates=50, ranks=5, tolerance=1e-5)
    for seed in range(200):
        log = log_of(20_000, queries=20, n_docs=12, seed=seed, randomised=0.3).log
        found = fit_clicks(log, "pbm", options).propensities
        assert found.low is not None
        assert found.high is not None
        hits.append([a <= t <= b for a, t, b in zip(found.low, TRUTH, found.high, strict=False)][1:])
    coverage = np.mean(hits)
    print(f"coverage {coverage:.3f} of {np.size(hits)} intervals")
    assert abs(coverage - 0.95) <= 0.02


# ---- what `clicks describe` recommends
# -----------------------------------------------------------------------------------

THETA = tuple((np.array(EXAMINATION) / EXAMINATION[0]).tolist())
PBM = Propensities(model="pbm", examination=THETA)
TRUST = Propensities(model="trust", examination=THETA, trust=tuple(0.05 / (k + 1) for k in range(10)))


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
    for seed, sessions in enumerate((1_000, 10_000)):
        log = log_of(sessions, queries=150, seed=seed, n_docs=20, swapped=0.1).log
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
