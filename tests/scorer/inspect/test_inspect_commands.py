"""``rankmill inspect ..`` as a person types it."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.cli_inspect import app
from rankmill.scorer.forest.predict import ForestPredictor, predict
from rankmill.scorer.inspect.combine import combine
from rankmill.scorer.inspect.contributions import explain_documents
from rankmill.scorer.inspect.shap import shap_interactions, shap_values
from rankmill.scorer.metrics import Policy, parse_metric
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.inspect.inspect_case import several_outputs
from tests.scorer.rerank.candidate_files import random_candidates, write_letor, write_parquet

ROWS = sorted(random_candidates(1), key=lambda row: (row[1].encode(), row[2].encode()))
VALUES = np.stack([row[3] for row in ROWS])


@pytest.fixture(scope="module")
def forests():
    return [random_forest(seed, n_trees=10, max_leaves=12, info={"max_grade": 4}) for seed in (5, 6)]


@pytest.fixture
def workplace(tmp_path, monkeypatch, forests):
    monkeypatch.chdir(tmp_path)
    write_letor(tmp_path / "c.txt", ROWS[::-1])
    write_parquet(tmp_path / "c.parquet", ROWS)
    forests[0].save("m.rankmill")
    forests[1].save("other.rankmill")
    several_outputs(3).save("linked.rankmill")
    return tmp_path


def call(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def found(*arguments):
    return json.loads(call(*arguments, "--json"))


def test_categories_have_names(workplace):
    names = [f"f{i + 1}" for i in range(5)]
    random_forest(5, n_trees=10, max_leaves=12, categorical=2, names=names).save("named.rankmill")
    shown = call("dependence", "named.rankmill", "f1")
    assert {"missing", "other"} <= {line.split()[0] for line in shown.splitlines()[2:]}, shown
    assert "acme" in shown
    assert "inf" not in shown
    facts = found("dependence", "named.rankmill", "f1", "f3")
    assert list(facts["categories"]) == ["f1"]
    assert len(facts["categories"]["f1"]) == len(facts["points"][0])
    assert "other" in call("why", "named.rankmill", "--on", "c.txt", "--qid", ROWS[0][1])
    assert found("why", "named.rankmill", "--on", "c.txt", "--qid", ROWS[0][1])["features"][0].keys() >= {"values"}


def test_shap_interactions(workplace, forests):
    whole = shap_interactions(forests[0], VALUES, qid=[row[1] for row in ROWS]).values[:, 0]
    facts = found("shap", "m.rankmill", "--on", "c.txt", "--interactions", "--top", 0)
    (output,) = facts["outputs"]
    assert (len(output["features"]), len(output["pairs"])) == (5, 10)
    names = list(forests[0].feature_names)
    for row in [*output["features"], *output["pairs"]]:
        i, j = (names.index(row["features"][k]) for k in (0, -1))
        sizes = np.abs(whole[:, i, j]) * (1 if i == j else 2)
        assert [row["mean_size"], row["greatest"]] == pytest.approx([sizes.mean(), sizes.max()])
    assert " x " in call("shap", "m.rankmill", "--on", "c.txt", "--interactions", "--raw")
    with pytest.raises(InputError, match="--interactions"):
        call("shap", "m.rankmill", "--on", "c.txt", "--interactions", "-o", "x.parquet")


def test_leaves(workplace, forests):
    assert "10 trees" in call("leaves", "m.rankmill", "--on", "c.txt", "-o", "leaves.parquet")
    table = pq.read_table("leaves.parquet")
    assert table.column_names == ["qid", "doc_id", "leaves"]
    assert table["doc_id"].to_pylist() == [row[2] for row in ROWS]
    whole = ForestPredictor(forests[0]).leaves(VALUES)
    assert np.array_equal(np.array(table["leaves"].to_pylist()), whole)
    facts = found("leaves", "m.rankmill", "--on", "c.txt", "-o", "l.parquet", "--start-round", 2, "--n-rounds", 3)
    assert facts["n_trees"] == 3
    assert np.array_equal(np.array(pq.read_table("l.parquet")["leaves"].to_pylist()), whole[:, 2:5])
    with pytest.raises(InputError, match="exists already"):
        call("leaves", "m.rankmill", "--on", "c.txt", "-o", "l.parquet")


def test_influence(workplace, forests):
    facts = found("influence", "m.rankmill", "--top", 2)
    assert facts["model"]["sha256"] == forests[0].sha256
    assert (len(facts["features"]), facts["n_used"], facts["n_features"]) == (2, 5, 5)
    text = call("influence", "m.rankmill", "--top", 2)
    assert "3 more features; --top 0 shows all" in text
    assert facts["features"][0]["feature"] in text.splitlines()[3]


def test_dependence(workplace, forests):
    facts = found("dependence", "m.rankmill", "f1", "--points", 3, "--on", "c.txt", "--queries", 0)
    assert facts["over"] == "documents"
    assert facts["n_documents"] == 300
    assert len(facts["points"][0]) == 4
    for point, output in zip(facts["points"][0], facts["outputs"][0], strict=True):
        moved = VALUES.copy()
        moved[:, 0] = np.nan if point is None else point
        assert output == pytest.approx(predict(forests[0], moved).mean(), rel=1e-12)
    assert found("dependence", "m.rankmill", "f1")["n_documents"] is None
    assert "f1 \\ f3" in call("dependence", "m.rankmill", "f1", "f3")
    assert "output 2" in call("dependence", "linked.rankmill", "f1")
    with refused(InputError, "--on"):
        call("dependence", "m.rankmill", "f1", "--qid", "q1")


def test_queries_that_were_drawn_are_reported(workplace):
    drawn = CliRunner().invoke(app, ["shap", "m.rankmill", "--on", "c.txt", "--queries", "3"])
    assert "sampled 3 queries with " in drawn.stderr
    assert "of 300 documents; use --queries 0 for all" in drawn.stderr
    for all_of_them in (["--queries", "0"], ["--qid", "q1"]):
        assert "drawn" not in CliRunner().invoke(app, ["shap", "m.rankmill", "--on", "c.txt", *all_of_them]).stderr


def test_interaction(workplace):
    facts = found("interaction", "m.rankmill", "f1", "f2", "--on", "c.txt", "--over", "documents")
    assert [one["features"] for one in facts["interactions"]][-1] == ["f1", "f2"]
    assert "f1 x f2" in call("interaction", "m.rankmill", "f1", "f2", "--on", "c.txt")
    whole = call("interaction", "m.rankmill", "--on", "c.txt", "--top", 3)
    assert "7 more rows; --top 0 shows all" in whole


def test_shap(workplace, forests):
    facts = found("shap", "m.rankmill", "--on", "c.txt", "--queries", 0, "-o", "s.parquet")
    assert (facts["n_documents"], facts["n_queries"], facts["centred"], facts["out"]) == (300, 12, True, "s.parquet")
    table = pq.read_table("s.parquet")
    qid = np.array([row[1] for row in ROWS])
    expected = shap_values(forests[0], VALUES, qid=qid)
    assert table["qid"].to_pylist() == qid.tolist()
    assert table["doc_id"].to_pylist() == [row[2] for row in ROWS]
    for f, name in enumerate(forests[0].feature_names):
        assert table[name].to_numpy() == pytest.approx(expected.values[:, 0, f], abs=1e-13)
    assert table["shap_total"].to_numpy() == pytest.approx(predict(forests[0], VALUES), rel=1e-9)
    assert table["shap_base"].to_numpy() == pytest.approx(expected.base[:, 0], abs=1e-12)
    first = facts["outputs"][0]["features"][0]
    sizes = np.abs(expected.values[:, 0]).mean(axis=0)
    assert first["feature"] == forests[0].feature_names[int(sizes.argmax())]
    assert first["mean_size"] == pytest.approx(sizes.max())
    with refused(InputError, "s.parquet", "overwrite"):
        call("shap", "m.rankmill", "--on", "c.txt", "-o", "s.parquet")
    before = (workplace / "s.parquet").read_bytes()
    call("shap", "m.rankmill", "--on", "c.parquet", "--queries", 0, "-o", "s.parquet", "--overwrite", "--n-threads", 2)
    assert (workplace / "s.parquet").read_bytes() == before
    with refused(InputError, "s.csv", ".parquet"):
        call("shap", "m.rankmill", "--on", "c.txt", "-o", "s.csv")


def test_shap_of_a_linked_model_reports_every_output(workplace, monkeypatch):
    monkeypatch.setattr("rankmill.scorer.inspect.contributions.BATCH_BYTES", 5000)  # a query or two at a time
    call("shap", "linked.rankmill", "--on", "c.txt", "--queries", 0, "--raw", "-o", "s.parquet")
    table = pq.read_table("s.parquet").to_pandas()
    expected = shap_values(several_outputs(3), VALUES)
    assert table["shap_output"].tolist() == [0, 1, 2] * 300
    assert np.array_equal(table[["f1", "f2", "f3", "f4", "f5"]].to_numpy().reshape(300, 3, 5), expected.values)
    assert "output 2" in call("shap", "linked.rankmill", "--on", "c.txt")
    assert explain_documents.__doc__


def test_why(workplace, forests):
    query = [i for i, row in enumerate(ROWS) if row[1] == "q3"]
    scores = predict(forests[0], VALUES[query])
    order = np.argsort(-scores, kind="stable")
    names = [ROWS[i][2] for i in query]
    facts = found("why", "m.rankmill", "--on", "c.txt", "--qid", "q3", "--top", 2)
    assert (facts["above"]["doc_id"], facts["below"]["doc_id"]) == (names[order[0]], names[order[1]])
    assert (facts["above"]["rank"], facts["below"]["rank"]) == (1, 2)
    parts = sum(one["difference"] for one in facts["features"]) + facts["others"]
    assert parts == pytest.approx(scores[order[0]] - scores[order[1]], abs=1e-12)
    last, third = names[order[-1]], names[order[2]]
    text = call("why", "m.rankmill", "--on", "c.txt", "--qid", "q3", "--above", last, "--below", third)
    assert f"{last} (rank {len(query)}, score" in text
    assert f" {third} (rank 3, score" in text
    with refused(InputError, "document 'D'"):
        call("why", "m.rankmill", "--on", "c.txt", "--qid", "q3", "--above", "D")
    with refused(InputError, "below"):
        call("why", "m.rankmill", "--on", "c.txt", "--qid", "q3", "--above", last)
    with refused(InputError, "itself"):
        call("why", "m.rankmill", "--on", "c.txt", "--qid", "q3", "--above", last, "--below", last)
    with refused(InputError, "'q33'", "'q3'"):
        call("why", "m.rankmill", "--on", "c.txt", "--qid", "q33")
    assert "explains output 1 of 3" in call("why", "linked.rankmill", "--on", "c.txt", "--qid", "q3", "--output", 1)


def test_combine(workplace, forests):
    facts = found("combine", "m.rankmill", "other.rankmill", "--on", "c.txt", "--metric", "err@5", "--from", -1)
    begins = np.searchsorted([row[1] for row in ROWS], sorted({row[1] for row in ROWS})).tolist()
    grades = np.array([row[0] for row in ROWS], dtype=np.int32)
    scores = [predict(forest, VALUES) for forest in forests]
    best = combine(
        *scores, grades, np.array([*begins, len(ROWS)]), parse_metric("err@5"), Policy(max_grade=4), low=-1.0
    )
    assert (facts["weight"], facts["value"], tuple(facts["interval"])) == (best.weight, best.value, best.interval)
    assert max(piece["mean"] for piece in facts["best_pieces"]) == pytest.approx(best.value)
    text = call("combine", "m.rankmill", "other.rankmill", "--on", "c.txt")
    assert f"{best.n_queries} queries count" in text
    assert "alone" in text
    (workplace / "bare.csv").write_text("qid,f1,f2,f3,f4,f5\nq,1,2,3,4,5\n")
    with refused(CandidatesRejected, "grades"):
        call("combine", "m.rankmill", "other.rankmill", "--on", "bare.csv")


def test_combine_with_a_list(workplace, forests):
    scores = predict(forests[1], VALUES)
    lines = [f"{row[1]} Q0 {row[2]} 1 {score!r} x" for row, score in zip(ROWS, scores.tolist(), strict=True)]
    (workplace / "b.run").write_text("\n".join([*lines[::-1], "q99 Q0 D 1 0.5 x"]))
    line = ["combine", "m.rankmill", "other.rankmill", "--on", "c.txt"]
    listed = found(*line[:2], "b.run", *line[3:])
    assert listed["rankers"][1] == {"list": "b.run"}
    assert listed["best_pieces"] == found(*line)["best_pieces"]
    assert "b.run alone" in call(*line[:2], "b.run", *line[3:])
    (workplace / "short.run").write_text("\n".join(lines[:-3]))
    with refused(CandidatesRejected, "short.run", "3", "300"):
        call(*line[:2], "short.run", *line[3:])
    (workplace / "twice.run").write_text("\n".join([*lines, lines[0]]))
    with refused(CandidatesRejected, "document", "once"):
        call(*line[:2], "twice.run", *line[3:])


def test_optimality(workplace):
    line = ["optimality", "m.rankmill", "--on", "c.txt", "--p0", 0.1, "--delta", 0.1, "--metric", "ndcg@5"]
    facts = found(*line, "--curves", 2, "--n-threads", 2)
    assert facts == found(*line, "--curves", 2)
    assert facts["n_directions"] == 22
    assert facts["p"] == facts["n_rising"] / 22
    assert len(facts["curves"]) == 2
    text = call(*line, "--curves", 1)
    assert "along 22 random directions" in text
    assert "best moved by (RMS)" in text


def test_a_list_that_is_not_there_is_no_model(workplace):
    with refused(InputError, "gone.run", "no such file"):
        call("combine", "m.rankmill", "gone.run", "--on", "c.txt")
