"""Comparisons of rankings: against the twin, and laws of what may change the report and what may not."""

import itertools
import json
import math
import statistics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.records import as_json
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.scorer.cli import app
from rankmill.scorer.evaluate.compare import Ranking, compare
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.metrics.significance import BOOTSTRAP_SEED, REPLICATES, holm
from tests import naive_gate
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, write_letor

METRICS = ["ndcg@5", "map", "concordance_micro", "balanced_error"]
LEVEL = dict.fromkeys(METRICS, lambda grade: grade) | {"map": lambda grade: grade > 0}  # what the metric distinguishes


def judged(seed, n_queries=15):
    """Queries of 2 to 9 graded documents; grades alone follow from the seed."""
    rng = np.random.default_rng(seed)
    return [
        (f"q{q:02}", f"d{q}-{d}", int(rng.integers(0, 4))) for q in range(n_queries) for d in range(rng.integers(2, 10))
    ]


def ranking(name, rows, seed, tied=4):
    """A scored list of the rows, scores in coarse steps and a little right."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(0, 1, len(rows)) * tied + [row[2] for row in rows]) / 4
    qid, doc, grade = zip(*rows, strict=True)
    table = pa.table({"qid": qid, "doc_id": doc, "score": scores, "grade": pa.array(grade, pa.int32())})
    return Ranking(name=name, source=table)


@pytest.fixture(scope="module")
def three():
    rows = judged(1)
    return [ranking(name, rows, seed) for name, seed in (("old", 2), ("new", 3), ("other", 4))]


def test_every_figure_is_its_definition(three):
    found = compare(three, metrics=METRICS)
    values = [evaluate(each.source, metrics=METRICS) for each in three]
    grades = {}
    for qid, _, grade in judged(1):
        grades.setdefault(qid, []).append(grade)
    for text in METRICS:
        metric = parse_metric(text)
        sign = 1 if metric.higher_is_better else -1
        p = []
        for i in (1, 2):
            each = found.differences[i][metric]
            now, then = values[i].values[metric], values[0].values[metric]
            kept = [q for q, qid in enumerate(values[0].qids) if len({LEVEL[text](y) for y in grades[qid]}) > 1]
            assert text != "map" or len(kept) < np.count_nonzero(~np.isnan(now))
            twin = naive_gate.paired(
                {values[0].qids[q]: sign * now[q] for q in kept},
                {values[0].qids[q]: sign * then[q] for q in kept},
                REPLICATES,
                BOOTSTRAP_SEED,
            )
            assert each.difference == pytest.approx(twin["difference"], abs=1e-15)
            assert each.candidate == pytest.approx(sum(now[kept]) / len(kept), abs=1e-14)
            assert each.n_queries == len(kept)
            if text != "concordance_micro":  # whose queries weigh differently: see test_metrics_laws
                assert each.interval == pytest.approx(twin["interval"], abs=1e-15)
            assert (each.wins, each.ties, each.losses) == (twin["wins"], twin["ties"], twin["losses"])
            moved = [d for d in (now - then)[kept] if abs(d) > 1e-12]
            sums = [abs(math.fsum(s * d for s, d in zip(signs, moved, strict=True)))
                    for signs in itertools.product((1, -1), repeat=len(moved))]  # fmt: skip
            p.append(sum(s >= abs(math.fsum(moved)) - 1e-10 for s in sums) / len(sums))
            assert each.p == p[-1]
        assert [found.differences[i][metric].p_holm for i in (1, 2)] == holm(p)


def test_the_order_of_rows_and_of_the_others_changes_nothing(three):
    found = as_json(compare(three, metrics=METRICS).record())
    rng = np.random.default_rng(1)
    shuffled = [
        Ranking(name=each.name, source=each.source.take(pa.array(rng.permutation(each.source.num_rows))))
        for each in three
    ]
    assert as_json(compare(shuffled, metrics=METRICS).record()) == found
    turned = as_json(compare([three[2], three[0], three[1]], metrics=METRICS, baseline=1).record())
    named = {each["name"]: each for each in turned["comparisons"]}
    assert named == {each["name"]: each for each in found["comparisons"]}


def test_the_other_way_round_is_the_negative(three):
    there, back = compare(three[:2], metrics=METRICS), compare(three[:2], metrics=METRICS, baseline=1)
    for metric in there.metrics:
        one, other = there.differences[1][metric], back.differences[0][metric]
        assert one.difference == -other.difference
        assert one.p == other.p == one.p_holm
        assert one.wins == other.losses
    same = compare([three[0], three[0]], metrics=METRICS)
    for found in same.differences[1].values():
        assert (found.difference, found.p, found.worst) == (0.0, 1.0, ())


@pytest.mark.parametrize("nothing_relevant", ["skip", "zero", "one"])
def test_queries_of_one_document_or_one_grade_are_left_out_and_counted(nothing_relevant):
    rows = judged(1)
    more = [(f"one{q}", "d", 1) for q in range(40)] + [(f"same{q}", f"d{d}", 2) for q in range(40) for d in range(3)]
    metrics = ["ndcg@5", "precision@5", "concordance_micro"]
    options = {"metrics": metrics, "nothing_relevant": nothing_relevant}
    few = compare([ranking("old", rows, 2), ranking("new", rows, 3)], **options)
    both = [(ranking(name, rows, seed), ranking(name, more, seed)) for name, seed in (("old", 2), ("new", 3))]
    many = compare([Ranking(name=a.name, source=pa.concat_tables([a.source, b.source])) for a, b in both], **options)
    assert many.differences == few.differences
    assert any("left out" in note and "80 by ndcg@5" in note for note in many.notes)
    assert (
        0 < few.differences[1][parse_metric("precision@5")].n_queries < 15
    )  # all of a short list are among the first 5


def test_runs_of_different_documents_differ_in_what_is_judged(tmp_path):
    """``only``: two judged documents, one relevant, of which each run has one; ``same``: nothing but one judged
    document."""
    qrels = tmp_path / "judged.qrels"
    qrels.write_text("only 0 a 1\nonly 0 b 0\nlost 0 a 1\nsame 0 a 1\nmore 0 a 1\nmore 0 b 0\n")
    runs = []
    for name, first in (("one", "a"), ("two", "b")):
        path = tmp_path / f"{name}.run"
        lines = [f"only Q0 {first} 1 2 x", "lost Q0 z 1 2 x", "same Q0 a 1 2 x"]
        lines += [
            f"more Q0 {doc} {rank} {-rank} x" for rank, doc in enumerate(("a", "b") if first == "a" else ("b", "a"))
        ]
        path.write_text("\n".join(lines) + "\n")
        runs.append(Ranking(name=name, source=path))
    found = compare(runs, metrics=["ndcg@5"], qrels=qrels).differences[1][parse_metric("ndcg@5")]
    assert (found.n_queries, found.losses, found.ties) == (3, 2, 1)  # lost: both miss what there is


def test_other_queries_are_named(three):
    rows = judged(1)
    fewer = ranking("few", [row for row in rows if row[0] not in {"q03", "q07"}], 1)
    more = ranking("many", [*rows, ("zz", "d", 1)], 1)
    with refused(CandidatesRejected, "few", "2", "old", "'q03', 'q07'"):
        compare([three[0], fewer])
    with pytest.raises(CandidatesRejected, match=r"2 of few are|2 of many are not in few|3 of many are not in few"):
        compare([fewer, more])
    graded = ranking("graded", [(q, d, 0 if q == "q05" else g) for q, d, g in rows], 1)
    with refused(CandidatesRejected, "'q05'", "ndcg@5", "graded"):
        compare([three[0], graded], metrics=["ndcg@5"])
    zero = compare([three[0], graded], metrics=["ndcg@5"], nothing_relevant="zero")
    assert "1 queries, such as 'q05', have other grades in graded than in old" in zero.notes[0]


def test_what_cannot_be_compared_is_refused(three):
    forest = random_forest(1, n_trees=2)
    model = Ranking(name="m", source=forest)
    for rankings, options, message in (
        (three[:1], {}, ("two", "rankings")),
        (three, {"baseline": 3}, ("baseline", "3", "4")),
        ([model, model], {}, ("m", "candidates")),
        (three, {"on": "c.txt"}, "scored"),
        (three, {"metrics": ["ngcd"]}, ("metric", "ngcd")),
    ):
        with refused(InputError, message):
            compare(rankings, **options)


def test_err_is_on_one_scale_whatever_the_highest_grade_of_each_list():
    rows = judged(8)
    lower = [(q, d, min(g, 2)) for q, d, g in rows]
    found = compare([ranking("a", rows, 1), ranking("b", lower, 2)], metrics=["err"], nothing_relevant="zero")
    assert [each.policy.max_grade for each in found.evaluations] == [3, 3]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Candidates, and a registry with three seeds of one model, another model of other parameters, and one of other
    data."""
    folder = tmp_path_factory.mktemp("compare")
    rows = random_candidates(1)
    write_letor(folder / "c.txt", rows)
    registry = Registry(folder / "registry-data")
    made = [("0", 6, 1), ("0", 6, 2), ("0", 6, 3), ("0", 9, 3), ("1", 6, 4), ("0", 9, 4)]
    forests = []
    for number, (digest, rounds, seed) in enumerate(made):
        forests.append(random_forest(20 + number, n_trees=rounds, max_leaves=8, info={"max_grade": 4}))
        facts = {"dataset_digest": digest * 64, "parameters": {"n_rounds": rounds, "seed": seed}}
        facts |= {"features": list(forests[-1].feature_names), "metrics": {}}
        registry.register("web", forests[-1].to_bytes(), manifest=facts)
    forests[0].save(folder / "m.rankmill")
    return folder, forests


def call(*arguments, command="compare"):
    result = CliRunner().invoke(app, [command, *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_models_of_the_registry_stand_beside_the_noise_of_their_seeds(place, monkeypatch):
    folder, forests = place
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    means = [evaluate("c.txt", model=forest, metrics=["ndcg@5"]).means[parse_metric("ndcg@5")] for forest in forests]
    report = json.loads(call("web@2", "web@4", "web@5", "--on", "c.txt", "--metric", "ndcg@5", "--json"))
    noise = report["comparisons"][0]["metrics"]["ndcg@5"]["seed_noise"]
    pooled = math.sqrt((2 * statistics.variance(means[:3]) + statistics.variance([means[3], means[5]])) / 3)
    assert noise["deviation"] == pytest.approx(pooled, rel=1e-12)
    assert sorted(noise["versions"]) == ["web@1", "web@2", "web@3", "web@4", "web@6"]
    difference = report["comparisons"][0]["metrics"]["ndcg@5"]["difference"]
    assert noise["exceeded_twice"] == (abs(difference) > 2 * pooled)
    alone = report["comparisons"][1]["metrics"]["ndcg@5"]["seed_noise"]  # web@5 has no other seed
    assert alone["deviation"] == pytest.approx(statistics.stdev(means[:3]), rel=1e-12)
    text = " ".join(call("web@1", "web@3", "--on", "c.txt", "--metric", "ndcg@5").split())
    assert "twice the standard deviation over seeds" in text
    assert "web@3 and web@1 differ in their seed only" in text
    assert "seed_noise" not in call("web@2", "web@4", "--on", "c.txt", "--no-seeds", "--json")


def test_the_command_takes_models_files_and_runs_and_any_number_of_threads(place, monkeypatch):
    folder, _ = place
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    call("c.txt", "--model", "web@4", "-o", "four.parquet", command="rerank")
    call("c.txt", "--model", "web@4", "-o", "four.folder", "--top-k", "3", command="rerank")
    how = ("--metric", "ndcg@3", "--ties", "doc_id", "--json")  # the top 3 do not know whom the third ties with
    found = [call("m.rankmill", "web@4", "--on", "c.txt", "--n-threads", threads, *how) for threads in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    model = json.loads(found[0])["comparisons"][0]["metrics"]["ndcg@3"]
    for ranked in ("four.parquet", "four.folder"):
        report = json.loads(call("m.rankmill", ranked, "--on", "c.txt", *how))
        assert report["comparisons"][0]["metrics"]["ndcg@3"] | {"seed_noise": None} == model | {"seed_noise": None}
    lists = json.loads(call("four.parquet", "four.folder", *how))
    assert lists["comparisons"][0]["metrics"]["ndcg@3"]["difference"] == 0.0
    assert not lists["notes"] or "few" in lists["notes"][0]
    with refused(InputError, "lost.run", "no such file"):
        call("lost.run", "four.parquet")


def test_runs_with_judgments(tmp_path):
    rows = judged(3, 30)
    (tmp_path / "qrels").write_text("".join(f"{q} 0 {d} {g}\n" for q, d, g in rows))
    for name, seed in (("a.run", 1), ("b.run", 2)):
        table = ranking(name, rows, seed).source.to_pydict()
        lines = [f"{q} Q0 {d} 0 {s} t\n" for q, d, s in zip(table["qid"], table["doc_id"], table["score"], strict=True)]
        (tmp_path / name).write_text("".join(lines if seed == 1 else lines[9:]))
    pq.write_table(ranking("a", rows, 1).source, tmp_path / "a.parquet")
    arguments = ("--qrels", tmp_path / "qrels", "--convention", "trec", "--metric", "map")
    with refused(CandidatesRejected, "queries", "--complete"):
        call(tmp_path / "a.run", tmp_path / "b.run", *arguments)
    text = call(tmp_path / "a.run", tmp_path / "b.run", *arguments, "--complete", "--worst", "2")
    assert "the queries that lost most, by map" in text
    assert "30 queries" in text
    same = call(tmp_path / "a.run", tmp_path / "a.parquet", *arguments, "--json")
    assert json.loads(same)["comparisons"][0]["metrics"]["map"]["difference"] == 0.0


def test_models_that_were_trained_on_what_they_rank_are_named(tmp_path):
    rng = np.random.default_rng(1)
    lines = [f"{rng.integers(0, 4)} qid:{q} " + " ".join(f"{f}:{rng.random():.3f}" for f in range(1, 7))
             for q in range(30) for _ in range(6)]  # fmt: skip
    (tmp_path / "j.txt").write_text("\n".join(lines) + "\n")
    ingest([tmp_path / "j.txt"], tmp_path / "d", options=IngestOptions(split={"train": 0.5, "test": 0.5}))
    digest = Dataset.open(tmp_path / "d").digest
    seen = Ranking(name="seen", source=random_forest(1, info={"dataset_digest": digest}))
    fresh = Ranking(name="fresh", source=random_forest(2, info={"dataset_digest": "0" * 64}))
    for split, splits, known in ((None, ("test",), {}), ("test", ("test",), {}), ("train", ("train",), {"seen": ("train",)}),
                                 ("all", ("train", "test"), {"seen": ("train",)})):  # fmt: skip
        found = compare([fresh, seen], on=tmp_path / "d", split=split, metrics=["map"])
        assert (found.scope.splits, found.scope.seen_in_training) == (splits, known)
        assert ("seen was trained on train: SEEN IN TRAINING" in " ".join(found.render().split())) == bool(known)
    other = compare([fresh, Ranking(name="new", source=fresh.source)], on=tmp_path / "d", metrics=["map"])
    assert other.scope.splits == ("train", "test")  # which neither was trained on
