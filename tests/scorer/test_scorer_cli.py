"""The commands ``rerank`` and ``evaluate`` as a person types them."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.registry import Registry
from rankmill.scorer.cli import app
from rankmill.scorer.rerank.score import DocumentBar
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, ranked, read_ranked, write_letor


@pytest.fixture(scope="module")
def rows():
    return random_candidates(1)


@pytest.fixture
def workplace(tmp_path, monkeypatch, rows):
    """A folder with candidates, a model file, and a registry of two versions of which the first is in production."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    write_letor(tmp_path / "c.txt", rows)
    forests = [random_forest(seed, n_trees=10, max_leaves=12, info={"max_grade": 4}) for seed in (5, 6)]
    forests[0].save("m.rankmill")
    registry = Registry(tmp_path / "registry-data")
    for forest in forests:
        facts = {"features": list(forest.feature_names), "dataset_digest": "0" * 64, "parameters": {}, "metrics": {}}
        registry.register("web", forest.to_bytes(), manifest=facts)
    registry.promote("web", 1, force=True)
    return forests


def call(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize(
    ("model", "version"), [("m.rankmill", None), ("web", 1), ("web@production", 1), ("web@2", 2), ("web@latest", 2)]
)
def test_rerank_with_every_way_to_name_a_model(workplace, tmp_path, rows, model, version):
    result = call("rerank", "c.txt", "--model", model, "-o", "out", "--memory", "600MB")
    forest = workplace[(version or 1) - 1]
    assert read_ranked(tmp_path / "out") == ranked(forest, rows)
    named = {"name": None, "number": None} if version is None else {"name": "web", "number": version}
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["model"] == named | {"sha256": forest.sha256}
    who = f"sha256 {forest.sha256[:12]}" if version is None else f"web@{version}"
    assert result.stdout == f"re-ranked 300 candidates of 12 queries with {who}\nwrote out (part-00000.parquet)\n"
    assert "memory 600 MB: " not in result.stderr  # which matters to large inputs


def test_large_inputs_print_how_the_memory_is_divided(workplace, monkeypatch):
    monkeypatch.setattr("rankmill.scorer.rerank.rerank._LARGE", 1)
    result = call("rerank", "c.txt", "--model", "web", "-o", "out", "--memory", "600MB")
    assert result.stderr.startswith("memory 600 MB: ")


def test_json_is_one_object_on_stdout(workplace):
    report = json.loads(call("rerank", "c.txt", "-m", "web", "-o", "out", "--top-k", 3, "--json").stdout)
    assert (report["rows"], report["rows_written"], report["queries"]) == (300, 36, 12)
    assert report["files"] == ["part-00000.parquet", "_grades.pq"]
    found = json.loads(call("evaluate", "out", "--metric", "ndcg@3", "--json").stdout)
    assert list(found["metrics"]) == ["ndcg@3"]
    assert found["ideal"] == "grade counts"


def test_evaluate_reports_the_default_metrics_and_the_conventions(workplace):
    text = call("evaluate", "c.txt", "--model", "web").stdout
    for metric in ("ndcg@1", "ndcg@5", "ndcg@10", "err@10", "map", "mrr", "precision@10"):
        assert f"\n {metric} " in text
    assert "gain exp (2^grade - 1), discount 1/log2(rank + 1), ties expected" in text
    call("rerank", "c.txt", "--model", "web", "-o", "out.run")
    with refused(InputError, "out.run", "grades", "--qrels FILE"):
        call("evaluate", "out.run")


def test_evaluate_writes_values_per_query(workplace, tmp_path):
    call("evaluate", "c.txt", "--model", "web", "--metric", "map", "--per-query", "q.tsv")
    assert len((tmp_path / "q.tsv").read_text().splitlines()) == 13
    with refused(InputError, "q.doc", ".tsv, .csv", ".parquet"):
        call("evaluate", "missing-too", "--per-query", "q.doc")


def test_models_that_are_not_there(workplace, tmp_path, monkeypatch):
    with refused(InputError, "'web'"):
        call("rerank", "c.txt", "--model", "wbe", "-o", "out")
    with pytest.raises(InputError, match="web"):
        call("rerank", "c.txt", "--model", "web@7", "-o", "out")
    with refused(InputError, "no.rankmill", "no such"):
        call("rerank", "c.txt", "--model", "no.rankmill", "-o", "out")
    monkeypatch.setenv("RANKMILL_REGISTRY", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError):
        call("rerank", "c.txt", "--model", "web", "-o", "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_the_bar_shows_rate_and_time_left_on_a_terminal_only(capsys):
    with DocumentBar("scoring", 100.0) as bar:
        bar.update(1000, 50.0)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
    console = Console(force_terminal=True, width=120, record=True)
    with DocumentBar("scoring", 100.0, console) as bar:
        bar.update(1000, 50.0)
    capsys.readouterr()
    text = console.export_text()
    assert "scoring" in text
    assert "1,000 documents, " in text
    assert "/s " in text


def test_candidates_from_a_spreadsheet_are_ranked_as_others(workplace, tmp_path, rows):
    names = [f"f{index}" for index in range(1, 1 + len(workplace[0].feature_names))]
    assert set(names) == set(workplace[0].feature_names)
    numbers = ["0,5", "1,25", "", "-3"]
    lines = [f"q{i // 5};d{i};" + ";".join(numbers[(i + j) % 4] for j in range(len(names))) for i in range(40)]
    semicolons = "\n".join([";".join(["qid", "doc_id", *names]), *lines, ""])
    (tmp_path / "a.csv").write_text(semicolons)
    (tmp_path / "b.csv").write_text(semicolons.replace(",", ".").replace(";", ","))
    options = ("--delimiter", ";", "--decimal-comma")
    call("rerank", "a.csv", "-m", "m.rankmill", "-o", "a.tsv", *options)
    call("rerank", "b.csv", "-m", "m.rankmill", "-o", "b.tsv")
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()
    call("rerank", "a.csv", "-m", "m.rankmill", "-o", "c.tsv", "--decimal-comma")  # the first line shows the delimiter
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "c.tsv").read_bytes()
    with pytest.raises(DataRejected, match="--delimiter ';'"):
        call("rerank", "a.csv", "-m", "m.rankmill", "-o", "d.tsv", "--delimiter", ",")
