"""Candidates that change while they are read: a refusal that names the file, and no list or figure of two states of it."""

from __future__ import annotations

import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.evaluate import evaluate as evaluating
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.rerank import run as rerank_run
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest

TEXT = "qid,doc_id,grade,f1,f2\n" + "".join(f"q{q},d{d},{d % 2},{d},{q}\n" for q in range(5) for d in range(4))
CHANGES = {
    "grows": TEXT + "q9,d,0,1,1\n",
    "shrinks": TEXT[:-20],
    "is replaced": "qid,doc_id,grade,f1,f2\nz,d,1,1,1\n",
    "changes in place": TEXT.replace("q1", "q7"),
    "is removed": None,
}


def change(path, how):
    new = CHANGES[how]
    if how == "changes in place":
        with path.open("r+") as file:
            file.write(new)
        return
    if how in {"is replaced", "is removed"}:
        path.unlink()
    if new is not None:
        path.write_text(new)


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("out", ["out", "out.csv"])
def test_a_list_of_candidates_that_changed_is_not_written(tmp_path, monkeypatch, how, out):
    path, score = tmp_path / "a.csv", rerank_run.score
    path.write_text(TEXT)
    forest = random_forest(1, n_features=2)

    def changing(*arguments):
        score(*arguments)
        change(path, how)

    monkeypatch.setattr(rerank_run, "score", changing)
    with refused(InputError, path, "changed while it was read"):
        rerank(path, forest, tmp_path / out)
    assert {each.name for each in tmp_path.iterdir()} <= {"a.csv"}


@pytest.mark.parametrize("how", CHANGES)
def test_candidates_that_changed_are_not_evaluated(tmp_path, monkeypatch, how):
    path, scored_rows = tmp_path / "a.csv", evaluating.scored_rows
    path.write_text(TEXT)

    def changing(*arguments):
        found = scored_rows(*arguments)
        change(path, how)
        return found

    monkeypatch.setattr(evaluating, "scored_rows", changing)
    with refused(InputError, path, "changed while it was read"):
        evaluate(path, model=random_forest(1, n_features=2), metrics=["ndcg@5"])
