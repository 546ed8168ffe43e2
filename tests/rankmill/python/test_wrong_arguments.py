"""Arguments of a wrong kind get one line that says what is expected, from every function for Python."""

import numpy as np
import pandas as pd
import pytest

from rankmill import BinnedDataset, Ranker, evaluate, plots, register_model, rerank
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
    "qid has": lambda r: plots.plot_shap_summary(r, FRAME, qid=QID[1:]),
    "model must be a ranker or its forest_, got a str": lambda _: plots.plot_importance("m.rankmill"),
    "top must be 1 or more, got 0": lambda r: plots.plot_importance(r, top=0),
    "top must be 1 or more, got -1": lambda r: plots.plot_shap_summary(r, FRAME, top=-1),
    "top must be a whole number": lambda r: plots.plot_importance(r, top="3"),
    "ranker must be a ranker, .* got a Forest": lambda r: plots.plot_learning_curve(r.forest_),
    "evaluation must be what evaluate.* got a NoneType": lambda _: plots.plot_metric_by_slice(None),
    "expected the name of a file to write, found a folder": lambda r: r.save("."),
    "there is no folder no/such; make it first": lambda r: r.save("no/such/m.rankmill"),
    "qid holds records": lambda _: Ranker().fit(FRAME, Y, qid=np.rec.fromarrays([QID, QID])),
}


def test_what_is_of_the_wrong_kind_is_named_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("altair")
    monkeypatch.chdir(tmp_path)
    ranker = small().fit(FRAME, Y, qid=QID)
    for message, call in CALLS.items():
        with pytest.raises(RankmillError, match=message) as caught:
            call(ranker)
        assert "\n" not in str(caught.value)
