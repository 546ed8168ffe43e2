"""A score on queries that a ranker has learnt from says so: of eval sets that a preset learns from, and of split
queries."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest

from rankmill import BinnedDataset, Ranker
from tests.rankmill.python.small_ranker import planted_arrays, small

KNOWN = r"score: {} of {} queries are known: the model learns from the eval set 'valid' too in the end .*no test result"
SPLIT = r"score: {} of {} queries have ids of queries that fit has learnt from, with other documents"


@pytest.fixture(scope="module")
def parts():
    """(X, y, qid) of 24, 8 and 8 queries with ids of text."""
    X, y, qid = planted_arrays()
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=np.where(X[:, 2] > 0, "p", "q"))
    ids = np.array([f"query {one}" for one in qid])
    return [(frame[of], y[of], ids[of]) for of in (qid < 24, (qid >= 24) & (qid < 32), qid >= 32)]


def auto(**more):
    return Ranker(n_rounds=6, n_threads=1, **more)


def scored(ranker, part):
    X, y, qid = part
    return ranker.score(X, y, qid=qid)


def joined(one, other):
    return pd.concat([one[0], other[0]]), np.concatenate([one[1], other[1]]), np.concatenate([one[2], other[2]])


@pytest.mark.parametrize("binned", [False, True])
def test_the_score_of_an_eval_set_that_was_learnt_from_says_so(parts, capsys, binned):
    (X, y, qid), valid, test = parts
    if binned:
        train = BinnedDataset(X, y, qid=qid)
        watched = BinnedDataset(valid[0], valid[1], qid=valid[2], reference=train)
        ranker = auto().fit(train, eval_set=watched)
    else:
        ranker = auto().fit(X, y, qid=qid, eval_set=valid)
    said = [line for line in capsys.readouterr().err.splitlines() if "compil" not in line]
    learnt, alone = said
    assert learnt.startswith(
        "fit: the model learns from the eval set 'valid' too in the end (refit=\"all\"), so its score"
    )
    assert alone == "preset auto-2, trees alone (n_rounds is given)"
    with pytest.warns(UserWarning, match=KNOWN.format(8, 8)):
        plain = scored(ranker, valid)
    again = np.random.default_rng(1).permutation(len(valid[1]))  # rows in another order, of another library, by a copy
    other = pl.from_pandas(valid[0].iloc[again])
    with pytest.warns(UserWarning, match=KNOWN.format(8, 8)):
        found = pickle.loads(pickle.dumps(ranker)).score(other, valid[1][again], qid=valid[2][again])
    assert found == plain
    with pytest.warns(UserWarning, match=KNOWN.format(8, 16)):
        scored(ranker, joined(valid, test))
    scored(ranker, test)
    scored(ranker, parts[0])


def test_what_only_chose_the_rounds_is_not_learnt_from(parts, capsys):
    (X, y, qid), valid, _ = parts
    for ranker in (auto(refit="none"), small()):
        scored(ranker.fit(X, y, qid=qid, eval_set=valid), valid)
    assert "learn" not in capsys.readouterr().err


def test_who_asks_for_it_gets_a_line_by_the_score_alone(parts, capsys):
    (X, y, qid), valid, test = parts
    ranker = auto(refit="all").fit(X, y, qid=qid, eval_set=[valid, test], eval_names=["valid", "other"])
    auto(verbose=0).fit(X, y, qid=qid, eval_set=valid)
    assert "learn" not in capsys.readouterr().err
    with pytest.warns(UserWarning, match=KNOWN.format(8, 8)):
        scored(ranker, valid)
    scored(ranker, test)  # of several sets, the first alone is learnt from


def test_queries_with_documents_in_both_parts_are_said(parts):
    X, y, qid = parts[0]
    first = np.arange(len(y)) % 10 < 7
    ranker, rest = small().fit(X[first], y[first], qid=qid[first]), (X[~first], y[~first], qid[~first])
    with pytest.warns(UserWarning, match=SPLIT.format(24, 24)):
        scored(ranker, rest)
    with pytest.warns(UserWarning, match=SPLIT.format(24, 32)):
        scored(ranker, joined(rest, parts[1]))


def test_ids_that_only_count_the_queries_are_not_compared(parts):
    (X, y, _), (other, grades, ids), _ = parts
    counted = small().fit(X, y, group=[10] * 24)
    counted.score(other, grades, group=[10] * 8)
    counted.score(other, grades, qid=1 + np.unique(ids, return_inverse=True)[1])


def test_another_fit_and_a_loaded_model_know_no_queries_of_before(parts, tmp_path):
    (X, y, qid), valid, test = parts
    ranker = auto(verbose=0).fit(X, y, qid=qid, eval_set=valid)
    ranker.save(tmp_path / "m.rankmill")
    scored(Ranker.load(tmp_path / "m.rankmill"), valid)  # the file does not name queries
    ranker.fit(test[0], test[1], qid=test[2])
    scored(ranker, valid)
