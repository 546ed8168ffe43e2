"""Simulated users do what their models say."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rankmill.clicks import simulate as simulation
from rankmill.clicks.options import ClickSimulation
from rankmill.clicks.result_lists import LogBlock
from rankmill.clicks.simulate import (
    EXAMINATION,
    QueriesToShow,
    click_probabilities,
    generated_queries,
    simulate,
    write_click_log,
)
from rankmill.foundation.errors import InputError
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from tests import naive_clicks as naive
from tests.refusals import refused

ETA = 0.5
THETA = [value**ETA for value in EXAMINATION]
CHANCES = {
    "pbm": lambda k, _, gamma: THETA[k - 1] * gamma,
    "cascade": lambda _, __, gamma: gamma,
    "dcm": lambda _, __, gamma: gamma,
    "ubm": lambda k, last, gamma: THETA[k - last - 1] * gamma,
    "trust": lambda k, _, gamma: THETA[k - 1] * (0.65 / k + (0.98 - 0.01 * (k - 1) - 0.65 / k) * gamma),
}
GO_ON = {"cascade": lambda _: 0.0, "dcm": lambda k: 0.9 * THETA[k - 1] / THETA[0]}


def judged_queries(n: int = 30, seed: int = 0) -> QueriesToShow:
    rng = np.random.default_rng(seed)
    start = np.concatenate([[0], np.cumsum(rng.integers(1, 25, n))])
    return QueriesToShow(start.astype(np.int64), rng.integers(0, 5, start[-1]).astype(np.int32))


def block_of(judged: QueriesToShow, scores: list[np.ndarray], options: ClickSimulation, seed: int = 1) -> LogBlock:
    (block,) = simulate(judged, scores, options, seed=seed).log.in_memory
    return block


@pytest.mark.parametrize("model", CHANCES)
def test_sessions_are_those_of_the_slow_twin(model):
    judged, rng = judged_queries(), np.random.default_rng(1)
    scores = [rng.random(len(judged.grades)), rng.integers(0, 3, len(judged.grades)) + 0.0]
    options = ClickSimulation(sessions=400, user_model=model, eta=ETA, randomised=0.3, swapped=0.4)
    lists = block_of(judged, scores, options, seed=5).lists
    gamma = click_probabilities(judged.grades, 0.1).tolist()
    found = {}
    for i, q in enumerate(lists.query.tolist()):
        rows = slice(lists.start[i], lists.start[i + 1])
        assert lists.rank[rows].tolist() == [*range(1, 1 + lists.start[i + 1] - lists.start[i])]
        found[int(lists.session[i])] = (q, lists.document[rows].tolist(), lists.clicked[rows].tolist())
    of_sessions, of_ids = naive.random_bits(5, 2), naive.random_bits(5, 3)
    for session in range(400):
        key = naive.random_bits(of_sessions, session)
        q, shown, clicked = found[naive.random_bits(of_ids, session)]
        documents = range(judged.start[q], judged.start[q + 1])
        rankings = [sorted(documents, key=lambda d, of=each: (-of[d], d)) for each in scores]
        length = min(10, len(documents))
        assert shown == naive.shown_list(key, rankings, documents, length, 0.3, 0.4)
        go_on = GO_ON.get(model, lambda _: 1.0)
        assert clicked == naive.clicks_of(key, [gamma[d] for d in shown], CHANCES[model], go_on)


def test_click_through_is_examination_times_relevance():
    judged = judged_queries()
    lists = block_of(judged, [], ClickSimulation(sessions=200_000)).lists
    gamma = click_probabilities(judged.grades, 0.1)[lists.document]
    for k in range(1, 11):
        of_rank = lists.rank == k
        expected = EXAMINATION[k - 1] * gamma[of_rank]
        error = np.sqrt((expected * (1 - expected)).sum())
        assert abs(lists.clicked[of_rank].sum() - expected.sum()) < 4 * error


def test_queries_are_asked_as_often_as_their_popularity_says():
    judged = judged_queries(20)
    for popularity, expected in (("zipf", 1 / np.arange(1, 21)), ("equal", np.ones(20))):
        query = block_of(judged, [], ClickSimulation(sessions=50_000, popularity=popularity)).lists.query
        shares = np.sort(np.bincount(query, minlength=20))[::-1] / 50_000
        np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.008)


def test_without_bias_every_rank_is_examined():
    judged = judged_queries()
    noisy = QueriesToShow(judged.start, np.full_like(judged.grades, 3))
    for model in ("pbm", "ubm"):
        assert block_of(noisy, [], ClickSimulation(sessions=300, eta=0, user_model=model)).lists.clicked.all()


def test_lists_are_sorted_and_shares_of_policies_are_as_asked():
    judged = judged_queries()
    options = ClickSimulation(sessions=20_000, randomised=0.2, swapped=0.5)
    made = simulate(judged, [np.arange(len(judged.grades)) + 0.0], options)
    (block,) = made.log.in_memory
    lists = block.lists
    assert np.array_equal(np.lexsort((lists.session, lists.query)), np.arange(20_000))
    shares = np.bincount(lists.policy) / 20_000
    assert made.log.policies == ("logger", "logger-swapped", "random")
    np.testing.assert_allclose(shares, [0.3, 0.5, 0.2], atol=0.02)
    in_order = np.diff(lists.document) < 0  # the logger prefers later documents
    same_list = np.diff(np.repeat(np.arange(20_000), np.diff(lists.start))) == 0
    policy = np.repeat(lists.policy, np.diff(lists.start))[1:]
    assert in_order[same_list & (policy == 0)].all()
    broken = np.bincount(np.repeat(np.arange(20_000), np.diff(lists.start))[1:][same_list & ~in_order & (policy == 1)])
    assert broken.max() == 1  # one pair of neighbours a list


def test_the_file_holds_the_sessions_of_the_log_in_memory(tmp_path, monkeypatch):
    judged, scores = generated_queries(SynthParameters(queries=12, documents_per_query=14, features=10), "ideal")
    options = ClickSimulation(sessions=500, swapped=0.5, randomised=0.1)
    write_click_log(tmp_path / "log.parquet", judged, scores, options, seed=4)
    monkeypatch.setattr(simulation, "_SESSIONS_AT_ONCE", 70)
    report = write_click_log(tmp_path / "log.csv", judged, scores, options, seed=4)
    table = pl.read_parquet(tmp_path / "log.parquet")
    assert table.equals(pl.read_csv(tmp_path / "log.csv", schema=table.schema))  # the size of blocks does not show
    made = simulate(judged, scores, options, seed=4)
    (block,) = made.log.in_memory
    assert report.impressions == len(table) == len(block.lists.document)
    assert report.clicks == table["clicked"].sum() == block.lists.clicked.sum()
    sizes = np.diff(block.lists.start)
    in_memory = pl.DataFrame(
        {
            "qid": pl.Series(block.queries.to_pylist()).gather(np.repeat(block.lists.query, sizes)),
            "doc_id": pl.Series(block.documents.to_pylist()).gather(block.lists.document),
            "position": block.lists.rank,
            "clicked": block.lists.clicked,
            "policy": pl.Series(made.log.policies).gather(np.repeat(block.lists.policy, sizes)),
        }
    )
    assert in_memory.sort(pl.all()).equals(table.drop("session").sort(pl.all()))
    longer = ClickSimulation(sessions=900, swapped=0.5, randomised=0.1)
    write_click_log(tmp_path / "longer.parquet", judged, scores, longer, seed=4)
    assert pl.read_parquet(tmp_path / "longer.parquet").head(len(table)).equals(table)


def test_generated_queries_are_those_of_the_judgments(tmp_path):
    parameters = SynthParameters(queries=15, documents_per_query=14, features=10)
    write_synthetic(tmp_path / "j.parquet", parameters)
    written = pl.read_parquet(tmp_path / "j.parquet")
    judged, (scores,) = generated_queries(parameters, "f1")
    qid = np.repeat(judged.query_ids.to_pylist(), np.diff(judged.start))
    made = pl.DataFrame({"qid": qid, "doc_id": judged.document_ids.to_pylist(), "grade": judged.grades, "f1": scores})
    expected = written.select("qid", "doc_id", "grade", pl.col("f1").cast(pl.Float64))
    assert made.sort("qid", "doc_id").equals(expected.sort("qid", "doc_id"))
    for first, last in zip(judged.start[:-1], judged.start[1:], strict=True):
        ids = judged.document_ids.to_pylist()[first:last]
        assert ids == sorted(ids)


def test_refusals(tmp_path):
    judged = judged_queries(3)
    with refused(InputError, ".txt", ".parquet", ".csv"):
        write_click_log(tmp_path / "log.txt", judged, [])
    (tmp_path / "log.csv").touch()
    with refused(InputError, "log.csv", "overwrite"):
        write_click_log(tmp_path / "log.csv", judged, [])
    with refused(InputError, len(judged.grades) - 1, len(judged.grades)):
        simulate(judged, [np.zeros(len(judged.grades) - 1)])
    with refused(InputError, "one document"):
        simulate(QueriesToShow(np.array([0, 0]), np.empty(0, np.int32)), [])


def test_the_logging_ranker_may_be_a_trec_run(tmp_path):
    parameters = SynthParameters(queries=3, documents_per_query=12, features=10)
    judged, (ideal,) = generated_queries(parameters, "ideal")
    ids = judged.document_ids.to_pylist()
    lines = [
        f"{name[1:].partition('-')[0]} Q0 {name} 1 {score!r} x" for name, score in zip(ids, ideal.tolist(), strict=True)
    ]
    (tmp_path / "ideal.run").write_text("\n".join(reversed(lines)) + "\n")
    _, (scores,) = generated_queries(parameters, str(tmp_path / "ideal.run"))
    np.testing.assert_array_equal(scores, ideal)
    (tmp_path / "short.run").write_text("\n".join(lines[1:]) + "\n")
    with refused(InputError, "short.run", "1 of the", ids[0], "seed"):
        generated_queries(parameters, str(tmp_path / "short.run"))
    with refused(InputError, "logger", "'idael'", "'ideal'"):
        ClickSimulation(logger="idael")
