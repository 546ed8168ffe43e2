"""The blend of auto-2 on a dataset: one version with its facts, the same bytes after a kill, and clear words where only
trees will do."""

import json
import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.scorer.evaluate.train_test_overlap import splits_trained_on
from rankmill.scorer.models.loading import Blend, load_model_file
from rankmill.trainer.candidates.blend_on_dataset import train_blend_on
from rankmill.trainer.candidates.multi_seed_training import plan_candidate
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.parameters import TrainParameters, options_for
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.training_service import train_and_register
from tests.refusals import unnamed
from tests.trainer.small_dataset import SHARES, small_dataset

GIVEN = TrainParameters(preset="auto-2", early_stopping_rounds=4)
AS_OPTIONS = "--preset auto-2 --early-stopping-rounds 4"


class Killed(BaseException):
    pass


def trained(dataset, given=GIVEN, **options):
    own = TrainingOptions(n_threads=options.pop("n_threads", 1), **options)
    return train_blend_on(dataset, given, own, plan_candidate(dataset, given, own))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("blend"), queries=50)


@pytest.fixture(scope="module")
def training(dataset, tmp_path_factory):
    """Return a registry that has web@1 and, of a few trees, other@1, and the lines that the training of web@1 printed."""
    registry, lines = Registry(tmp_path_factory.mktemp("registered") / "r"), []
    options = TrainingOptions(on_message=lines.append)
    train_and_register(dataset, "web", registry, GIVEN, options, SeedOptions(), log_every=1)
    few = TrainParameters(n_rounds=3, refit="none")
    train_and_register(dataset, "other", registry, few, TrainingOptions(), SeedOptions())
    return registry, lines


@pytest.fixture(scope="module")
def registered(training):
    return training[0]


def test_the_plan_and_the_progress_name_what_is_trained(training):
    lines = "\n".join(training[1]).splitlines()
    (plan,) = [line for line in lines if line.startswith("training on ")]
    assert not unnamed(plan, "3 folds of the train and valid splits, then trained on both splits, and blended")
    assert "rounds are kept" not in plan
    progress = [re.match(r"(.*), (round|epoch) ([\d,]+) of ([\d,]+): ", line) for line in lines]
    assert all(int(found[3]) <= int(found[4]) for found in progress if found)
    stages = list(dict.fromkeys((found[1], found[2]) for found in progress if found))
    kinds = {"trees": "round", "ranking trees": "round", "net": "epoch"}
    folds = [(f"{kind}, fold {n} of 3", unit) for kind, unit in kinds.items() for n in (1, 2, 3)]
    assert stages[:9] == folds
    assert {*stages[9:]} <= {(f"{kind}, all rows", unit) for kind, unit in kinds.items()}
    shares = training[0].resolve("web@1", bare="latest").manifest["parameters"]["kinds"]
    assert len(stages[9:]) == sum(kind["share"] > 0 for kind in shares)


@pytest.mark.slow
def test_without_a_test_split_the_valid_split_is_not_learnt_from(tmp_path):
    found = trained(small_dataset(tmp_path, {"train": 0.7, "valid": 0.3}, queries=50))
    assert splits_trained_on(found.blend) == ("train",)
    assert list(found.facts.metrics) == ["valid"]


def test_a_version_is_a_blend_and_says_what_was_tried_and_chosen(registered, dataset):
    version = registered.resolve("web@1", bare="latest")
    model, facts = load_model_file(version.model_path), version.manifest
    assert isinstance(model, Blend)
    kinds = facts["parameters"]["kinds"]
    assert [kind["kind"] for kind in kinds] == ["trees", "ranking trees", "net"]
    assert sum(kind["share"] for kind in kinds) == pytest.approx(1.0)
    assert len(facts["merged"]) == len(model.parts) == sum(kind["share"] > 0 for kind in kinds)
    assert facts["metrics"]["cv"]["ndcg@10"] == facts["parameters"]["together"]
    assert facts["refit"]["queries"] == len(dataset.queries("train")) + len(dataset.queries("valid"))
    assert options_for(facts["parameters"]) == {"preset": "auto-2", "early_stopping_rounds": 4}
    assert splits_trained_on(model) == ("train", "valid")
    assert options_for({**facts["parameters"], "metric": "map"})["metric"] == "map"


@pytest.mark.slow
def test_the_same_training_is_registered_once(registered, dataset, typed):
    version = registered.resolve("web@1", bare="latest")
    report = typed.json(f"train {dataset.path} --name web --registry {registered.root} {AS_OPTIONS}")
    assert (report["model"], report["new"], report["sha256"]) == ("web@1", False, version.sha256)
    assert report["blend"]["kinds"] == version.manifest["parameters"]["kinds"]


def test_the_budget_fast_trains_the_bytes_of_auto_1(dataset, tmp_path, typed):
    train = f"train {dataset.path} --name web --registry {tmp_path} --early-stopping-rounds 4"
    fast, trees = (typed.json(f"{train} {given}") for given in ("--budget fast --preset auto-2", "--preset auto-1"))
    assert fast["sha256"] == trees["sha256"]


@pytest.mark.parametrize("more", ["--n-rounds 3", "--monotone f1:1 --n-rounds 3", "--seeds 1,2"])
def test_where_trees_are_alone_a_line_says_why(dataset, tmp_path, typed, more):
    said = typed.err(f"train {dataset.path} --name web --registry {tmp_path} {AS_OPTIONS} {more}")
    assert "preset auto-2, trees alone (" in said
    assert ("the number of rounds is uncertain" in said) == ("--n-rounds" in more)  # a blend is judged by folds


@pytest.mark.parametrize(
    "command",
    [
        "train D --name web --resume web@1",
        "train D --name web --base-model web@1",
        "convert web@1 --to lightgbm -o OUT",
        "inspect shap web@1 --on D",
        "inspect leaves web@1 --on D -o OUT.parquet",
        "inspect interaction web@1 --on D",
        "inspect optimality web@1 --on D",
        "models merge web@1 web@1 --name two",
        "inspect influence web@1 --n-rounds 3",
    ],
)
def test_what_needs_trees_refuses_the_blend_and_names_the_budget_fast(registered, dataset, tmp_path, typed, command):
    words = command.replace(" D", f" {dataset.path}").replace("OUT", f"{tmp_path}/x.txt")
    code = 10 if "convert" in command else 2
    error = typed.err(f"{words} --registry {registered.root}", code=code).splitlines()[-1]
    assert "a blend of" in error
    assert "--budget fast" in error


def test_show_and_diff_say_what_is_in_the_blend(registered, typed):
    at = f"--registry {registered.root}"
    kinds = typed.json(f"models show web@1 {at}")["manifest"]["parameters"]["kinds"]
    shown, changed = typed.out(f"models show web@1 {at}"), typed.out(f"models diff web@1 other@1 {at}")
    for kind in kinds:
        assert f"kind {kind['kind']}, rounds {kind['rounds']}, share {kind['share']:.6g}" in shown
        assert f"{kind['share']:.0%} ({kind['alone']:.4f} alone, {kind['rounds']:,} " in changed
    assert all(word in shown for word in ("auto-2", "together", "queries in 3 folds"))


def test_importances_are_those_of_its_trees(registered, dataset, typed):
    at = f"--registry {registered.root}"
    found = typed.json(f"inspect influence web@1 {at}")["features"]
    ranker = Ranker.from_model(load_model_file(registered.resolve("web@1", bare="latest").model_path))
    importances = dict(zip(ranker.feature_names_in_, ranker.feature_importances_, strict=True))
    assert {each["feature"]: each["influence"] for each in found} == pytest.approx(
        {name: share for name, share in importances.items() if share > 0.0}
    )


@pytest.mark.slow
def test_the_report_says_what_is_in_the_blend_and_the_importances_of_its_trees(registered, dataset, tmp_path, typed):
    at = f"--registry {registered.root}"
    typed(f"report web@1 --on {dataset.path} --out {tmp_path}/report {at}")
    found = json.loads((tmp_path / "report/report.json").read_text())
    features = typed.json(f"inspect influence web@1 {at}")["features"]
    assert [(each["feature"], each["influence"]) for each in found["influence"]["features"]] == [
        (each["feature"], each["influence"]) for each in features
    ]
    assert {"trees", "ranking trees", "net", "judged", "preset"} <= found["lineage"]["parameters"].keys()


def test_the_default_model_is_blended_with_another(registered, dataset, typed):
    at = f"--registry {registered.root}"
    typed(f"models blend web@1 other@1 --on {dataset.path} --split test --name both {at}")
    model, whole = (load_model_file(registered.resolve(name, bare="latest").model_path) for name in ("web@1", "both"))
    assert list(whole.parts[: len(model.parts)]) == list(model.parts)
    assert len(whole.parts) == len(model.parts) + 1
    assert splits_trained_on(whole) == ("train", "valid", "test")


def test_cross_validation_says_that_it_is_of_trees_alone(dataset, typed):
    said = typed.err(f"cv {dataset.path} --folds 2 --n-rounds 3 {AS_OPTIONS}")
    assert "preset auto-2, trees alone (" in said


@pytest.mark.slow
def test_with_many_queries_the_valid_split_judges(dataset, monkeypatch):
    monkeypatch.setattr("rankmill.trainer.candidates.blend_of_kinds.MOST_FOLDED", 10)
    found = trained(dataset)
    assert "valid" in found.facts.metrics
    assert found.found.history[0].metrics.keys() == {"train", "valid"}
    assert found.facts.refit is not None
    kept = trained(dataset, replace(GIVEN, refit="none"))
    assert kept.facts.refit is None
    assert splits_trained_on(kept.blend) == ("train",)
    assert found.facts.metrics == kept.facts.metrics


@pytest.mark.slow  # nine trainings of a blend
@pytest.mark.parametrize("most_folded", [300, 10], ids=["folds", "valid"])
def test_kills_threads_and_order_change_no_byte(dataset, tmp_path, monkeypatch, most_folded):
    monkeypatch.setattr("rankmill.trainer.candidates.blend_of_kinds.MOST_FOLDED", most_folded)
    whole = trained(dataset)
    assert trained(dataset, n_threads=2).blend.sha256 == whole.blend.sha256
    lines = (dataset.path.parent / "judgments.txt").read_text().splitlines()
    shuffled = tmp_path / "shuffled.txt"
    shuffled.write_text("\n".join(np.random.default_rng(1).permutation(lines)) + "\n")
    ingest([shuffled], tmp_path / "d", options=IngestOptions(buckets=3, split=SHARES))
    bin_dataset(Dataset.open(tmp_path / "d"), 31)
    assert trained(Dataset.open(tmp_path / "d")).blend.sha256 == whole.blend.sha256
    kept = tmp_path / "kept"
    for rounds in (30, 400):

        def kill(_, left=[rounds]):  # noqa: B006 - counted down
            left[0] -= 1
            if not left[0]:
                raise Killed

        with suppress(Killed):
            trained(dataset, checkpoint=kept, checkpoint_every=0.1, on_round=kill)
    resumed = trained(dataset, checkpoint=kept, checkpoint_every=0.1)
    assert resumed.blend.to_bytes() == whole.blend.to_bytes()
    assert trained(dataset, checkpoint=kept).blend.to_bytes() == whole.blend.to_bytes()  # from finished parts
    resumed.clear()
    assert not list(kept.iterdir())
