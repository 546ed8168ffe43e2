"""What a registered version says of itself, against the data, the model and an evaluation of it."""

import hashlib
import json

import numpy as np
import pytest

from rankmill.foundation.code_digest import OF_TRAINING, code_digest, digest_of_folder
from rankmill.foundation.records import as_json, to_line
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch, overlap
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics.significance import NORMAL_FROM, interval_of_mean, percentile_interval
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.trainer.candidates import version_facts
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.candidates.version_facts import attachments_of, facts_of
from rankmill.trainer.training_facts import CIRCUMSTANCES, OtherModel
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.trainer.fixed import fixed

SMALL = fixed(n_rounds=12, max_leaves=4, learning_rate=0.5, early_stopping_rounds=4)
SHARES = {"train": 0.6, "valid": 0.2, "test": 0.2}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lineage")
    for seed in (1, 2):
        settings = SynthParameters(queries=60, documents_per_query=8, features=10, seed=seed)
        text = folder / f"week{seed}.txt"
        write_synthetic(text, settings)
        text.write_text(text.read_text().replace("qid:", f"qid:{seed}-"))
    ingest([folder / "week1.txt", folder / "week2.txt"], folder / "d", options=IngestOptions(buckets=3, split=SHARES))
    bin_dataset(Dataset.open(folder / "d"), 31)
    return Dataset.open(folder / "d")


@pytest.fixture(scope="module")
def result(dataset):
    return train(dataset, SMALL, TrainingOptions(eval_metrics=["map", "concordance_micro", "deviance"], n_threads=1))


def test_the_facts_name_data_code_and_parameters(dataset, result):
    facts = as_json(facts_of(dataset, result))
    manifest = dataset.manifest
    assert facts["dataset_digest"] == dataset.digest == result.forest.info["dataset_digest"]
    assert facts["binspec_digest"] == result.forest.info["binspec_digest"]
    reported = facts["dataset"]
    assert (reported["rows"], reported["queries"], reported["max_bin"]) == (manifest.rows, manifest.queries, 31)
    assert reported["split_by"] == {"shares": SHARES}
    for split, count in reported["splits"].items():
        assert (count["queries"], count["rows"]) == (len(dataset.queries(split)), dataset.queries(split).n_rows)
    files = {path.name: path.read_bytes() for path in dataset.path.parent.glob("week*.txt")}
    assert reported["sources"]["files"] == 2
    assert reported["sources"]["bytes"] == sum(map(len, files.values()))
    assert {each["name"]: each["sha256"] for each in reported["sources"]["list"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    assert facts["parameters"] == result.forest.parameters
    assert facts["parameters"]["seed"] == SMALL.seed
    assert facts["changed_parameters"] == ["n_rounds", "learning_rate", "early_stopping_rounds", "max_leaves"]
    assert facts["code_digest"] == code_digest(*OF_TRAINING)
    assert (facts["best_round"], facts["rounds_trained"]) == (result.best_round, len(result.history))
    assert "base_model" not in facts


def test_the_same_training_says_the_same_and_no_time_or_path(dataset, result):
    again = train(dataset, SMALL, TrainingOptions(eval_metrics=["map", "concordance_micro", "deviance"], n_threads=2))
    facts = to_line(facts_of(dataset, result))
    assert facts == to_line(facts_of(dataset, again))
    assert str(dataset.path.parent) not in facts


def test_of_many_sources_their_number_and_a_digest_are_reported(dataset, result, monkeypatch):
    whole = as_json(facts_of(dataset, result))["dataset"]["sources"]
    monkeypatch.setattr(version_facts, "MOST_SOURCES", 1)
    short = as_json(facts_of(dataset, result))["dataset"]["sources"]
    text = json.dumps(whole["list"], sort_keys=True, separators=(",", ":"))
    assert short == {key: whole[key] for key in ("files", "bytes")} | {
        "list_sha256": hashlib.sha256(text.encode()).hexdigest()
    }


def test_metrics_and_intervals_are_those_of_an_evaluation(dataset, result):
    facts = as_json(facts_of(dataset, result))
    names = ["ndcg@10", "map", "concordance_micro"]
    assert result.best_round < len(result.history)  # else this would say nothing of which round is reported
    for split in ("train", "valid"):
        found = evaluate(dataset.path, model=result.forest, split=split, metrics=names)
        place = {qid: i for i, qid in enumerate(found.qids)}
        order = [place[qid] for qid in dataset.queries(split).qid.to_pylist()]  # chance draws queries by their order
        for metric in found.metrics:
            assert facts["metrics"][split][str(metric)] == found.means[metric]
            reported, evaluated = facts["intervals"][split][str(metric)], found.intervals[metric]
            assert evaluated is not None
            assert reported == pytest.approx(evaluated, abs=0.3 * (evaluated[1] - evaluated[0]))
            if metric.name != "concordance_micro":  # whose queries weigh differently
                assert tuple(reported) == percentile_interval(found.values[metric][order])
        assert "deviance" in facts["metrics"][split]
        assert set(facts["intervals"][split]) == set(names)


@pytest.mark.parametrize("options", [{"rounds_by": "test"}, {"rounds_by": "oob", "query_fraction": 0.5}])
def test_the_best_round_by_any_rule_is_the_one_that_is_reported(dataset, options):
    parameters = fixed(n_rounds=12, max_leaves=4, learning_rate=0.5, early_stopping_rounds=0, **options)
    result = train(dataset, parameters, TrainingOptions(n_threads=1))
    facts = as_json(facts_of(dataset, result))
    for split, metrics in facts["metrics"].items():
        assert np.nanmean(result.by_query[split]["ndcg@10"].values) == pytest.approx(metrics["ndcg@10"], rel=1e-12)
        low, high = facts["intervals"][split]["ndcg@10"]
        assert low < metrics["ndcg@10"] < high
    found = evaluate(dataset.path, model=result.forest, split="valid", metrics=["ndcg@10"])
    assert facts["metrics"]["valid"]["ndcg@10"] == found.means[found.metrics[0]]


def test_a_cross_validation_reports_folds_and_deviations(dataset):
    result = train(dataset, fixed(n_rounds=4, max_leaves=4, rounds_by="cv", folds=3), TrainingOptions(n_threads=1))
    facts = as_json(facts_of(dataset, result))
    assert result.cross_validation is not None
    assert facts["metrics"]["cv"] == {"ndcg@10": result.cross_validation.mean("ndcg@10")}
    assert facts["cross_validation"] == {
        "folds": 3,
        "deviations": {"ndcg@10": result.cross_validation.deviation("ndcg@10")},
    }
    assert set(facts["intervals"]) == {"train", "valid"}


def test_a_base_model_is_named_with_its_digest(dataset, result):
    identity = ModelIdentity(sha256=result.forest.sha256, name="web", number=3)
    on_top = train(dataset, SMALL, TrainingOptions(base_model=StartingModel(result.forest), n_threads=1))
    named = facts_of(dataset, on_top, StartingModel(result.forest, identity)).base_model
    assert named == OtherModel(sha256=on_top.forest.info["base_model"], model="web@3")
    file = ModelIdentity(sha256=result.forest.sha256)
    assert facts_of(dataset, on_top, StartingModel(result.forest, file)).base_model == OtherModel(
        sha256=result.forest.sha256
    )


def test_attachments_hold_the_queries_trained_on_and_the_circumstances(dataset, result):
    identity = ModelIdentity(sha256=result.forest.sha256, name="web", number=1)
    attached = attachments_of(dataset, StartingModel(result.forest, identity))
    sketch = QuerySketch.from_bytes(attached[TRAIN_QUERIES])
    for split, whole in (("train", True), ("valid", False), ("test", False)):
        qids = dataset.queries(split).qid
        found = overlap(sketch, qids)
        assert (found.found, found.queries, found.exact) == (len(qids) if whole else 0, len(qids), True)
    reported = json.loads(attached[CIRCUMSTANCES])
    assert reported["libraries"]["numpy"] == np.__version__
    assert reported["resumed"] == {"model": "web@1", "sha256": result.forest.sha256}
    assert "resumed" not in json.loads(attachments_of(dataset)[CIRCUMSTANCES])


def test_the_code_digest_follows_paths_and_bytes_of_sources_alone(tmp_path):
    def digest(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = folder / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return digest_of_folder("trainer", folder)

    plain = digest(a_py="x = 1\n", b__c_py="y = 2\n")
    assert plain == digest(b__c_py="y = 2\n", a_py="x = 1\n", note="no code")
    others = [
        digest(a_py="x = 1 \n", b__c_py="y = 2\n"),
        digest(a_py="x = 1\n", b_py="y = 2\n"),
        digest(a_py="x = 1\n"),
        digest(a_py="x = 1\ny = 2\n", b__c_py=""),
        digest_of_folder("scorer", tmp_path / "0"),
    ]
    assert len({plain, *others}) == 6
    assert set(OF_TRAINING) == {"rankmill.pipeline", "rankmill.scorer", "rankmill.trainer"}


@pytest.mark.parametrize("weighted", [False, True])
def test_the_normal_interval_is_the_bootstrap_s_of_many_queries(weighted):
    rng = np.random.default_rng(3)
    values = rng.beta(0.5, 0.5, NORMAL_FROM + 7)
    weights = rng.gamma(2.0, 0.5, len(values)) if weighted else None
    values = values if weights is None else values * weights
    values[::11] = np.nan
    normal, bootstrap = interval_of_mean(values, weights=weights), percentile_interval(values, weights=weights)
    more = interval_of_mean(np.append(values, values), weights=None if weights is None else np.append(weights, weights))
    assert normal == bootstrap  # not so many of them count
    assert more is not None
    assert bootstrap is not None
    spread = bootstrap[1] - bootstrap[0]
    assert more[0] + more[1] == pytest.approx(sum(bootstrap), abs=0.2 * spread)
    assert (more[1] - more[0]) * np.sqrt(2.0) == pytest.approx(spread, rel=0.12)


def test_a_base_model_s_queries_count_as_trained_on(dataset, result):
    test = dataset.queries("test").qid
    attached = attachments_of(dataset, base=StartingModel(result.forest, queries=QuerySketch.of([test])))
    sketch = QuerySketch.from_bytes(attached[TRAIN_QUERIES])
    assert sketch.queries == len(test) + len(dataset.queries("train"))
    assert overlap(sketch, test).found == len(test)
