"""Arguments of a wrong kind get one line that says what is expected, from every function for Python."""

import numpy as np
import pandas as pd
import pytest

from rankmill import BinnedDataset, Ranker, evaluate, register_model, rerank
from rankmill.foundation.errors import RankmillError
from tests.rankmill.python.small_ranker import planted_arrays, small

X, Y, QID = planted_arrays()
FRAME = pd.DataFrame(X, columns=list("abcd"))


CALLS = {
    "register_model takes a ranker or a model, got a str": lambda _: register_model("m.rankmill", "web"),
    "reference must be the BinnedDataset .* got a DataFrame": lambda _: BinnedDataset(
        FRAME, Y, qid=QID, reference=FRAME
    ),
    "model must be a model or the path .* got a Ranker; give its model_": lambda r: rerank("rows.csv", r, "out.csv"),
    "model must be a model .* got a Ranker; give its model_$": lambda r: evaluate("rows.csv", model=r, metrics=["map"]),
    "the path of a file or folder, .* got a DataFrame; write": lambda r: evaluate(FRAME, metrics=["map"]),
    "or a list of paths, got a DataFrame": lambda r: rerank(FRAME, r.forest_, "out.csv"),
    "qid has the shape": lambda r: r.contributions(FRAME, qid=QID[1:]),
    "expected the name of a file to write, found a folder": lambda r: r.save("."),
    "there is no folder no/such; make it first": lambda r: r.save("no/such/m.rankmill"),
    "qid holds records": lambda _: Ranker().fit(FRAME, Y, qid=np.rec.fromarrays([QID, QID])),
}


def test_what_is_of_the_wrong_kind_is_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranker = small().fit(FRAME, Y, qid=QID)
    for message, call in CALLS.items():
        with pytest.raises(RankmillError, match=message) as caught:
            call(ranker)
        assert "\n" not in str(caught.value)
