"""``rankmill convert``: models to other tools' files and from them, and every way to be refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from rankmill.convert import names_in
from rankmill.foundation.errors import ConversionRefused
from rankmill.registry import Registry
from rankmill.scorer.exchange import lightgbm, xgboost
from rankmill.scorer.exchange.conversion import missing_as_zero
from rankmill.scorer.exchange.formats import WRITERS, write_as
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.models.loading import Blend
from tests.refusals import refused, unnamed
from tests.scorer.exchange.exchange_cases import peer
from tests.scorer.forests import random_forest
from tests.scorer.nets.test_net import drawn_net

SUFFIX = {"lightgbm": "txt", "xgboost": "json", "solr": "json", "onnx": "onnx"}


@pytest.fixture
def forest():
    found = random_forest(1, names=["bm25", "title", "age", "clicks", "length"])
    return missing_as_zero(found)


@pytest.fixture
def model(tmp_path, forest):
    forest.save(tmp_path / "web.rankmill")
    return tmp_path / "web.rankmill"


@pytest.mark.parametrize("target", WRITERS)
def test_every_format_is_written_and_reported(target, model, forest, tmp_path, typed):
    out = tmp_path / f"out.{SUFFIX[target]}"
    report = typed.json(f"convert {model} --to {target} -o {out}")
    written = WRITERS[target](forest, "web")
    assert out.read_bytes() == written.data
    assert (report["format"], report["trees"], report["features"]) == (target, forest.n_trees, 5)
    assert (report["sha256"], report["bytes"], report["bound"]) == (forest.sha256, len(written.data), written.bound)
    shown = typed.out(f"convert {model} --to {target} -o {out} --overwrite")
    assert f"wrote {out}: web for {target}, 6 trees over 5 features\nscores: {written.exactness}\n" in shown
    assert shown.count("note: ") == len(written.notes)


@pytest.mark.parametrize("name", ["m.onnx", "m.txt"])
def test_the_suffix_says_the_format(name, model, tmp_path, typed):
    target = typed.json(f"convert {model} -o {tmp_path}/{name}")["format"]
    typed(f"convert {model} --to {target} -o {tmp_path}/again-{name}")
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()


@pytest.mark.parametrize(("name", "hint"), [("m.json", "it may be xgboost or solr"), ("m.bin", ".onnx")])
def test_a_suffix_that_says_too_little_is_refused(name, hint, model, tmp_path, typed):
    said = typed.refused(f"convert {model} -o {tmp_path}/{name}")
    assert hint in said
    assert "--to FORMAT" in said
    assert not (tmp_path / name).exists()


def test_a_version_of_the_registry_keeps_its_name(tmp_path, forest, typed):
    store = Registry(tmp_path / "registry")
    facts = {"features": list(forest.feature_names), "dataset_digest": None, "parameters": {}, "metrics": {}}
    store.register("shop", forest.to_bytes(), manifest=facts)
    options = f"--to solr -o {tmp_path}/any.json --registry {store.root}"
    assert typed.json(f"convert shop@1 {options}")["model"] == "shop@1"
    assert json.loads((tmp_path / "any.json").read_bytes())["name"] == "shop"
    assert "production" in typed.refused(f"convert shop {options} --overwrite")


def test_features_get_other_names_from_a_list_or_a_file(model, tmp_path, typed):
    names = ["a", "b", "c", "d", "e"]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n")
    for number, given in enumerate((",".join(names), tmp_path / "names.txt")):
        out = tmp_path / f"{number}.txt"
        typed(f"convert {model} --to lightgbm -o {out} --features {given}")
        assert lightgbm.read(out.read_bytes(), "m").forest.feature_names == tuple(names)
    for given, message in (
        ("a,b", "features has 2 names, the model has 5 features"),
        ("a,b,c,d,a", "two features have the name 'a'"),
        ("a,b,c,d,", "the name of feature 5 is empty"),
    ):
        assert message in typed.refused(f"convert {model} --to onnx -o {tmp_path}/m.onnx --features {given}")
    assert not (tmp_path / "m.onnx").exists()


def test_numbered_features_are_named_by_their_first_and_last():
    assert names_in("f1..f3") == ["f1", "f2", "f3"]
    assert names_in("bm25, f9..f11,age") == ["bm25", "f9", "f10", "f11", "age"]
    assert names_in("7..8") == ["7", "8"]
    for no_range in ("f3..f1", "a1..b3", "a..b", "f01..f3"):
        assert names_in(no_range) == [no_range]


def test_what_text_leaves_out_is_as_it_was_to_the_other_tool(tmp_path, typed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forest = random_forest(3, n_trees=20)
    Path("m.json").write_bytes(WRITERS["xgboost"](forest, "m").data)
    Path("c.txt").write_text("1 qid:1 1:0.5 5:0.25\n0 qid:1 2:1\n0 qid:1 3:-1 4:2\n")
    rows = np.array([[0.5, 0, 0, 0, 0.25], [0, 1, 0, 0, 0], [0, 0, -1, 2, 0]], dtype=np.float32)
    meant = {"zero": rows, "missing": np.where(rows == 0.0, np.float32(np.nan), rows)}
    convert = "convert m.json --from xgboost -o m.rankmill --overwrite"
    for absent, values in meant.items():
        assert "sparse" not in typed.out(f"{convert} --absent {absent}")
        typed("rerank c.txt -m m.rankmill -o r.tsv --overwrite")
        assert scores_in("r.tsv") == sorted(predict(Forest.load("m.rankmill"), values).tolist(), reverse=True)
    assert not unnamed(typed.out(convert), "--absent missing")
    assert not unnamed(typed.err(f"{convert} --absent nothing", code=2), "'nothing'")


def scores_in(name):
    return [float(row.split("\t")[2]) for row in Path(name).read_text().splitlines()[1:]]


def test_a_model_that_lightgbm_has_learnt_from_text_scores_that_text(tmp_path, typed, monkeypatch):
    """It counts columns from 0 and the text from 1: its Column_1 is the text's feature 1."""
    lightgbm_itself = peer("lightgbm")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    rows = np.where(rng.random((200, 3)) < 0.3, 0.0, rng.normal(size=(200, 3)).round(3))
    grades = (rows[:, 0] + rows[:, 2] > 0.2).astype(int)
    cells = [" ".join(f"{f + 1}:{x}" for f, x in enumerate(row) if x) for row in rows.tolist()]
    for name, of_query in (("l.txt", ""), ("c.txt", "qid:1 ")):
        Path(name).write_text("".join(f"{y} {of_query}{row}\n" for y, row in zip(grades, cells, strict=True)))
    data = lightgbm_itself.Dataset("l.txt", params={"verbose": -1})
    booster = lightgbm_itself.train({"verbose": -1, "num_threads": 1, "min_data_in_leaf": 5}, data, 5)
    booster.save_model("m.txt")
    convert = "convert m.txt --from lightgbm -o m.rankmill --overwrite"
    rerank = "rerank c.txt -m m.rankmill -o r.tsv --overwrite"
    assert not unnamed(typed.out(convert), "--features f0..f3")
    assert "with --features" in typed.err(rerank, code=10)
    typed(f"{convert} --features f0..f3")
    typed(rerank)
    # LightGBM reads the text in double precision, and a model that was read goes by float32: cuts lie between the
    # values
    assert scores_in("r.tsv") == sorted(booster.predict("l.txt").tolist(), reverse=True)


def test_a_model_is_cut_to_its_first_rounds_both_ways(model, forest, tmp_path, typed):
    there, back = tmp_path / "m.json", tmp_path / "again.rankmill"
    typed(f"convert {model} --to xgboost -o {there} --n-rounds 3")
    typed(f"convert {there} --from xgboost -o {back} --n-rounds 2")
    rows = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    assert np.abs(predict(Forest.load(back), rows) - predict(forest.truncated(2), rows)).max() < 1e-5
    said = typed.refused(f"convert {there} --from xgboost -o {back} --overwrite --n-rounds 4")
    assert "--n-rounds must be in 0..3" in said


def test_missing_values_keep_their_way_or_go_where_zero_goes(tmp_path, typed):
    forest = random_forest(2)
    forest.save(tmp_path / "m.rankmill")
    convert = f"convert {tmp_path}/m.rankmill --to onnx -o {tmp_path}/m.onnx"
    for options, meant in ("", forest), ("--missing zero --overwrite", missing_as_zero(forest)):
        typed(f"{convert} {options}")
        assert (tmp_path / "m.onnx").read_bytes() == WRITERS["onnx"](meant, "m").data
    assert not unnamed(typed.err(f"{convert} --missing zeros --overwrite", code=2), "'zero'")


@pytest.mark.parametrize("source", ["lightgbm", "xgboost"])
def test_a_model_of_another_tool_is_registered_or_written_with_its_scores(source, model, forest, tmp_path, typed):
    file, out, store = tmp_path / f"m.{SUFFIX[source]}", tmp_path / "again.rankmill", tmp_path / "registry"
    typed(f"convert {model} --to {source} -o {file}")
    report = typed.json(f"convert {file} --from {source} --name old --registry {store}")
    assert (report["model"], report["from"]) == ("old@1", str(file))
    assert f"wrote {out}: " in typed.out(f"convert {file} --from {source} -o {out}")
    version = Registry(store).resolve("old@1", bare="latest")
    again = Forest.load(out)
    assert version.read() == again.to_bytes()
    assert version.manifest["converted_from"] == source
    rows = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    written = WRITERS[source](forest, "web")
    assert np.max(np.abs(predict(again, rows) - predict(forest, rows))) <= written.bound
    shown, *_ = (
        typed.out(f"models {each} --registry {store}").split() for each in ("show old", f"diff old@1 {model}", "list")
    )
    assert shown[shown.index("converted_from") + 1] == source


MISTAKES = """
MODEL | choose a direction: --to FORMAT
MODEL --to onnx --from xgboost | choose a direction
MODEL --to onnx | no output file given; name it with -o FILE
MODEL --to onyx -o NEW | unknown format 'onyx'; did you mean 'onnx'?
MODEL --to xgboost -o NEW | xgboost needs another suffix; name the file new.json
MODEL --to onnx -o MODEL | exists already; choose another name, or replace it with --overwrite
MODEL --to onnx -o FOLDER | expected the name of a file, found a folder
MODEL --to onnx -o FOLDER/no/m.onnx | no such folder
FOLDER/no.rankmill --to onnx -o NEW | no such model file
MODEL --to onnx -o NEW --nearest-thresholds | nearest thresholds are only for solr
MODEL --from catboost --name a | cannot read models of 'catboost', only those of lightgbm and xgboost
MODEL --from lightgbm | choose one output
MODEL --from lightgbm --name a -o NEW | choose one output
MODEL --from lightgbm --name A! | A!
FOLDER/no.txt --from lightgbm -o NEW | no such file; expected a model of lightgbm
MODEL --from lightgbm -o NEW --missing zero | can only be used with --to
MODEL --from lightgbm -o NEW | expected a LightGBM text model
MODEL --from xgboost -o NEW | expected an XGBoost model in JSON
"""


def test_what_cannot_be_done_is_one_line_and_nothing_is_written(model, tmp_path, typed):
    before = model.read_bytes()
    for row in MISTAKES.strip().splitlines():
        arguments, message = row.split(" | ")
        for name, path in {"MODEL": model, "NEW": tmp_path / "new", "FOLDER": tmp_path}.items():
            arguments = arguments.replace(name, str(path))
        assert message in typed.refused(f"convert {arguments} --registry {tmp_path}/registry")
        assert list(tmp_path.iterdir()) == [model]
        assert model.read_bytes() == before


@pytest.mark.parametrize("target", WRITERS)
def test_nets_and_blends_are_refused_where_there_are_only_trees(target, forest):
    blend = Blend(parts=(forest, random_forest(2)), weights=np.array([0.5, 0.5]), base_score=0.0)
    for model, words in ((drawn_net(), "a net of"), (blend, "merge")):
        with refused(ConversionRefused, target, words):
            write_as(target, model)


def test_what_a_tool_has_that_we_have_not_is_refused_with_10(tmp_path, forest, typed):
    text = lightgbm.write(forest, "m").data.replace(b"is_linear=0", b"is_linear=1")
    (tmp_path / "m.txt").write_bytes(text)
    model = json.loads(xgboost.write(forest, "m").data)
    model["learner"]["gradient_booster"]["name"] = "gblinear"
    (tmp_path / "m.json").write_text(json.dumps(model))
    for given, message in (("m.txt --from lightgbm", "linear functions"), ("m.json --from xgboost", "has no trees")):
        assert message in typed.refused(f"convert {tmp_path}/{given} -o {tmp_path}/m.rankmill", code=10)
    assert not (tmp_path / "m.rankmill").exists()
