"""``rankmill train --model net`` and ``[train] model = "net"``: registered, resumed, refused, and used like any other
model."""

import json
from functools import partialmethod

import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.scorer.evaluate.train_test_overlap import splits_trained_on
from rankmill.scorer.models.loading import Blend
from rankmill.scorer.models.model_service import model_of
from rankmill.scorer.nets.net import Net
from rankmill.trainer.nets.options import ModelOptions, NetOptions
from rankmill.trainer.nets.train_on_dataset import train_net_on
from rankmill.trainer.options import CheckpointOptions
from rankmill.trainer.parameters import TrainParameters
from tests.rankmill.run.test_run import CONFIG, write_project
from tests.refusals import refused

SMALL = "--model net --layers 8 --epochs 3 --batch-documents 100"


def options(**more):
    return NetOptions(layers=(8,), batch_documents=100, **{"epochs": 3, **more})


def test_a_net_is_registered_and_used_like_any_model(dataset, tmp_path, typed):
    at, on = f"--registry {tmp_path}/r", dataset.path
    report = typed.json(f"train {on} --name net {SMALL} --seed 3 {at}")
    net = model_of(Registry(tmp_path / "r").resolve("net@1", bare="latest"))
    assert isinstance(net, Net)
    assert (report["weights"], report["trees"], net.widths) == (net.n_weights, 0, (8,))
    assert net.parameters["seed"] == 3
    assert typed.json(f"train {on} --name net {SMALL} --seed 3 --n-threads 2 {at}")["new"] is False
    typed(f"train {on} --name web --n-rounds 4 --refit none {at}")
    for command in (
        f"models blend web@1 net@1 --on {on} --name both",
        f"compare both@1 net@1 web@1 --on {on} --split test",
        f"evaluate {on} --model net@1 --split test",
        "models show net@1",
        "models diff web@1 net@1",
        f"inspect influence net@1 --on {on} --split test --permutations 1",
        f"report net@1 --on {on} -o {tmp_path}/report",
        "models promote net@1 --force",
        f"train {on} --name pairs {SMALL} --updates pairs --objective ranknet --activation tanh --dropout 0"
        " --no-batch-norm --optimiser sgd --weight-decay 0",
    ):
        typed(f"{command} {at}")


def test_options_of_the_other_kind_are_refused(dataset, tmp_path, typed):
    train = f"train {dataset.path} --registry {tmp_path}/r --name web"
    for given in ("--max-leaves 7", "--resume net@1", "--seeds 1,2"):
        assert f"{given.split()[0]} is an option of trees" in typed.err(f"{train} {SMALL} {given}", code=2)
    assert "--layers is an option of nets; add --model net" in typed.err(f"{train} --layers 8", code=2)
    with refused(InvalidParameter, "max_leaves", "trees"):
        ModelOptions(model="net").net_options(TrainParameters(max_leaves=5))
    shared = ModelOptions(model="net").net_options(TrainParameters(objective="softmax", learning_rate=0.5, seed=9))
    assert (shared.objective, shared.learning_rate, shared.seed) == ("softmax", 0.5, 9)
    assert ModelOptions(model="net").net_options(TrainParameters()) == NetOptions()


def test_a_killed_training_resumes_to_the_same_bytes(dataset, tmp_path):
    whole = train_net_on(dataset, options(), CheckpointOptions())
    machine = CheckpointOptions(checkpoint=tmp_path / "kept", checkpoint_every=0.0)
    seen = []

    def killed(record):
        seen.append(record.round_number)
        if record.round_number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_net_on(dataset, options(), machine, on_round=killed)
    resumed = train_net_on(dataset, options(), machine, on_round=lambda record: seen.append(record.round_number))
    assert seen == [1, 2, 3]
    assert (resumed.net, resumed.facts) == (whole.net, whole.facts)
    again = train_net_on(dataset, options(), machine, on_round=seen.append)
    assert (again.net, len(seen)) == (whole.net, 3)  # nothing is trained again
    resumed.clear()
    assert not [*(tmp_path / "kept").iterdir()]


def test_neither_files_nor_batches_of_reading_change_the_bytes(dataset, tmp_path, monkeypatch):
    whole = train_net_on(dataset, options(), CheckpointOptions()).net
    rows, files = (dataset.path.parent / "judgments.txt").read_text().splitlines(keepends=True), []
    for name, part in (("b", rows[:333]), ("a", rows[333:])):
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text("".join(part))
    for buckets in (3, 5):
        read = IngestOptions(buckets=buckets, block_size=4096, split=dict(dataset.manifest.meaning.split))
        ingest(files, tmp_path / f"of {buckets}", options=read)
        other = train_net_on(Dataset.open(tmp_path / f"of {buckets}"), options(), CheckpointOptions(n_threads=3)).net
        assert other.all_weights.tobytes() == whole.all_weights.tobytes()
        assert (other.sha256 == whole.sha256) == (
            buckets == 3
        )  # the digest of the dataset, which a net names, distinguishes buckets
    monkeypatch.setattr(Dataset, "feature_batches", partialmethod(Dataset.feature_batches, batch_rows=13))
    assert max(len(batch) for batch in dataset.feature_batches("train")) == 13
    assert train_net_on(dataset, options(), CheckpointOptions()).net.sha256 == whole.sha256


def test_a_damaged_checkpoint_is_reported_and_not_used(dataset, tmp_path):
    machine = CheckpointOptions(checkpoint=tmp_path / "kept")
    whole, said = train_net_on(dataset, options(epochs=1), machine), []
    data = whole.checkpoint.read_bytes()
    whole.checkpoint.write_bytes(data[:-40] + bytes(40))
    assert train_net_on(dataset, options(epochs=1), machine, on_message=said.append).net == whole.net
    assert "not used" in said[0]


def check_promoted(project, version):
    """The gate let the version through, it is production, and it ranked the candidates that the report is about."""
    found = Registry(project / "registry").resolve(f"{version.split('@')[0]}@production", bare="latest")
    gate = json.loads((project / "out/gate.json").read_text())
    assert (str(found), gate["candidate"]["model"], gate["passed"]) == (version, found.sha256, True)
    manifest = json.loads((project / "out/ranked/_manifest.json").read_text())
    assert manifest["model"]["sha256"] == found.sha256
    assert version in (project / "out/report/report.json").read_text()


@pytest.mark.slow
def test_a_run_trains_and_ranks_with_a_net(tmp_path, typed):
    project = write_project(tmp_path)
    path = project / "rankmill.toml"
    net = CONFIG.replace("n_rounds = 12\nmax_leaves = 8\n", 'model = "net"\nlayers = [8]\nepochs = 3\n')
    path.write_text(net)
    run, store = f"run {path} --registry {project}/registry", Registry(project / "registry")
    typed(run, code=11)  # three epochs are too few for the gate
    assert not (project / "out/ranked").exists()
    assert isinstance(model_of(store.resolve("web@1", bare="latest")), Net)
    net = net.replace("epochs = 3", "epochs = 60\nlearning_rate = 0.02\nbatch_documents = 100\ndropout = 0.0")
    path.write_text(net)
    typed(run)
    check_promoted(project, "web@2")
    assert (project / "out/report/index.html").exists()
    assert (project / "out/ranked").exists()
    typed(run)  # nothing is done again
    assert len(store.versions("web")) == 2
    for text, named in (
        (net.replace("epochs = 60", "epochs = 60\nmax_leaves = 4"), "max_leaves"),
        (net.replace('model = "net"\n', ""), "layers"),
        (net.replace("epochs = 60", "epochs = 60\nseeds = [1, 2]"), "seeds"),
    ):
        path.write_text(text)
        assert named in typed.err(run, code=2)


@pytest.mark.slow
def test_a_run_blends_with_another_model(tmp_path, typed):
    project = write_project(tmp_path)
    path, store = project / "rankmill.toml", Registry(project / "registry")
    run = f"run {path} --registry {project}/registry"
    open_run = CONFIG.replace("n_rounds = 12", 'n_rounds = 12\nrefit = "none"')
    path.write_text(open_run)
    typed(run)
    blend = CONFIG.replace('"web"', '"second"').replace("n_rounds = 12\nmax_leaves = 8", "early_stopping_rounds = 4")
    blend = blend.replace("[evaluate]", '[blend]\nname = "both"\nmodels = ["web@1"]\n[evaluate]')
    path.write_text(blend)
    typed(run)
    second, web, both = (model_of(store.resolve(f"{name}@1", bare="latest")) for name in ("second", "web", "both"))
    assert isinstance(second, Blend)  # what the default preset trains, with the valid split kept for the weights
    assert splits_trained_on(second) == ("train",)
    assert list(both.parts) == [*second.parts, web]
    check_promoted(project, "both@1")
    typed(run)
    assert len(store.versions("both")) == 1
    dataset = project / "out/dataset"
    typed(f"train {dataset} --name seen --n-rounds 2 --refit all --registry {project}/registry")
    path.write_text(blend.replace('"second"', '"third"').replace("web@1", "seen@1"))
    assert "seen@1 learnt from the valid split" in typed.err(run, code=2)
    assert "third" not in store.names()  # nothing was trained before that
    for text, named in (
        (blend.replace("web@1", "absent"), "absent"),
        (blend.replace('name = "both"', 'name = "web"'), "web"),
        (blend.replace('name = "both"', 'name = "both"\nmetric = "ncdg"'), "ndcg"),
        (blend.replace("early_stopping_rounds = 4", 'refit = "all"'), "refit"),
    ):
        path.write_text(text)
        assert named in typed.err(run, code=2)
