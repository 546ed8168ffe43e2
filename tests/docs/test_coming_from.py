"""docs/coming-from.md and docs/converting.md against the programs: our names, defaults and options, and theirs where
they can be asked."""

import inspect
import json
import re
from dataclasses import fields

import numpy as np
import pytest

from rankmill import BinnedDataset, Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter
from rankmill.python.other_libraries import NOT_HERE, OURS
from rankmill.scorer.exchange.formats import READERS, WRITERS
from rankmill.scorer.metrics.metric import parse_metric
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.objectives.spelling import OBJECTIVES
from rankmill.trainer.parameters import OLDEST, TrainParameters
from tests import ROOT
from tests.refusals import refused
from tests.scorer.exchange.exchange_cases import peer

DOCS = ROOT / "docs"
TEXT = (DOCS / "coming-from.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
TOOLS = ("LightGBM", "XGBoost", "CatBoost", "RankLib", "gbm (R)")
DEFAULTS = {name: p.default for name, p in inspect.signature(Ranker).parameters.items()} | {
    name: value for name, value in OLDEST.as_dict().items() if name != "monotone"
}
OF_FIT = set(inspect.signature(Ranker.fit).parameters) - {"self", "X", "y"}


def cells(section):
    found = []
    for line in SECTIONS[section].splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            parts = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(parts) == 3, line
            found.append(parts)
    return found[1:]


def code(text):
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("section", ["Everybody", *TOOLS])
def test_the_second_column_has_our_names_with_our_defaults(section):
    for theirs, ours, _ in cells(section):
        for written in code(ours):
            name, reported, value = written.partition("=")
            assert name in (DEFAULTS if reported else DEFAULTS.keys() | OF_FIT), f"{theirs}: {written}"
            if reported:
                assert eval(value) == DEFAULTS[name], f"{theirs}: {written}, the default is {DEFAULTS[name]!r}"


@pytest.mark.parametrize("section", ["LightGBM", "XGBoost", "CatBoost"])
def test_a_ranker_that_is_given_their_names_answers_with_ours(section):
    there = set()
    for theirs, ours, remarks in cells(section):
        mine = [written.partition("=")[0] for written in code(ours) + code(remarks) if ours]
        names = [written.partition("=")[0] for written in code(theirs) if re.fullmatch(r"[a-z_]\w+(=.+)?", written)]
        for name in names if mine else ():
            if name in OURS:
                assert OURS[name] in mine, f"{name}: {OURS[name]}, the table has {mine}"
                there.add(name)
        assert not mine or any(name in OURS or name in DEFAULTS or name in OF_FIT for name in names), theirs
    assert len(there) > 8


@pytest.mark.parametrize("tool", ["LightGBM", "XGBoost", "CatBoost"])
def test_no_guess_is_made_for_a_name_that_none_of_ours_stands_for(tool):
    lost = re.search(r"No counterpart: (.*?)\.\s", SECTIONS[tool], flags=re.DOTALL)[1]
    rows = cells(tool) + cells(f"{tool}'s other parameters")
    names = {name for theirs, ours, _ in rows if not ours for name in code(theirs)} | set(code(lost))
    for name in names - OURS.keys() - DEFAULTS.keys() - OF_FIT:
        if re.fullmatch(r"[a-z]\w+", name):
            with refused(InvalidParameter, name) as found:
                Ranker(**{name: 1})
            assert "did you mean" not in str(found.value), name
    assert not NOT_HERE & OURS.keys()


def test_a_misplaced_argument_names_its_place():
    rows = np.zeros((4, 1)), [0, 1, 0, 1]
    with refused(InvalidParameter, "'valid_sets'", "fit(X, y, eval_set=..)"):
        Ranker(valid_sets=[])
    with refused(InvalidParameter, "did you mean 'early_stopping_rounds'"):  # which fit takes too
        Ranker(early_stopping_round=3)
    for name in ("nfold", "folds"):
        with refused(InvalidParameter, f"'{name}'", "Ranker(folds=..)"):
            cross_validate(Ranker(), *rows, group=[4], **{name: 3})
    with refused(InvalidParameter, "'categorical_feature'", "'categorical'"):
        BinnedDataset(*rows, group=[4], categorical_feature=[0])


@pytest.mark.parametrize("section", [*TOOLS, "Everybody"])
def test_what_is_to_be_set_can_be_set(section):
    for _, _, remarks in cells(section):
        for written in code(remarks):
            call = re.fullmatch(r"(\w+)\((\w+)=(.+)\)", written)
            assigned = re.fullmatch(r'(\w+)=("[^"]*"|[\d.]+|True|False)', written)
            if call and call[1] in OBJECTIVES:
                assert call[2] in {field.name for field in fields(objective_class(call[1]).Options)}, written
            elif assigned and assigned[1] in DEFAULTS:
                if assigned[1] in {field.name for field in fields(TrainParameters)}:
                    TrainParameters(**{assigned[1]: eval(assigned[2])})
                if assigned[1] in {"metric", "stop_metric"}:
                    parse_metric(eval(assigned[2]))
            elif assigned:
                assert assigned[1] in {"sampling_unit"}, written


def test_every_objective_that_stands_for_one_of_theirs_is_there():
    stands_for = {
        "LightGBM": "l2 laplace huber quantile poisson bernoulli",
        "CatBoost": "yetirank lambdamart query_rmse softmax query_cross_entropy ranknet stochasticrank l2",
        "RankLib": "l2 ranknet rankboost listnet", "gbm (R)": "l2 laplace quantile bernoulli adaboost poisson coxph",
    }  # fmt: skip
    for section, names in stands_for.items():
        remarks = " ".join(remark for _, _, remark in cells(section))
        for name in names.split():
            assert name in OBJECTIVES
            assert re.search(rf"\b{name}\b", remarks), f"{section}: {name}"


def test_every_format_has_its_row():
    page = (DOCS / "converting.md").read_text(encoding="utf-8")
    names = [re.match(r"\| `(\w+)` \|", line) for line in page.splitlines()]
    assert [found[1] for found in names if found] == list(WRITERS)
    assert "--from " + "|".join(READERS) in page


def assignments(section):
    """Their names and defaults, where the first column has them."""
    return [
        written.partition("=")[::2]
        for theirs, _, _ in cells(section)
        for written in code(theirs)
        if re.fullmatch(r"\w+(=.+)?", written)
    ]


def same(reported, found):
    try:
        return float(np.float32(reported)) == float(np.float32(found))
    except ValueError:
        return reported == found


def test_lightgbm_has_these_names_and_defaults():
    lightgbm = peer("lightgbm")
    rng = np.random.default_rng(0)
    data = lightgbm.Dataset(rng.normal(size=(60, 2)), rng.integers(0, 3, 60), group=[20] * 3, params={"verbose": -1})
    model = lightgbm.train({"objective": "lambdarank", "verbose": -1}, data, 1)
    known = dict(re.findall(r"^\[(\w+): (.*)\]$", model.model_to_string(), flags=re.MULTILINE))
    others = set()
    for name, default in assignments("LightGBM"):
        if name in known and default and name != "objective":
            reported = "1" if name == "num_iterations" else known[name]  # of this training
            assert same("1" if name == "num_iterations" else default, reported), (
                f"{name}={default}, found {known[name]}"
            )
        elif name not in known:
            others.add(name)
    assert others == {"l1", "huber", "quantile", "poisson", "binary"}  # names of objectives
    lost = re.search(r"No counterpart: (.*?)\.\s", SECTIONS["LightGBM"], flags=re.DOTALL)[1]
    for name in code(lost):
        assert name in known or name == "position", name


def test_xgboost_has_these_names_and_defaults():
    xgboost = peer("xgboost")
    rng = np.random.default_rng(0)
    data = xgboost.DMatrix(rng.normal(size=(60, 2)), rng.integers(0, 3, 60), qid=np.repeat(range(3), 20), nthread=1)
    known = {}

    def collect(found):
        for key, value in found.items():
            if isinstance(value, dict):
                collect(value)
            elif isinstance(value, str):
                known[key] = value

    collect(json.loads(xgboost.train({"objective": "rank:ndcg"}, data, 1).save_config())["learner"])
    for name, default in assignments("XGBoost"):
        if name in {
            "num_boost_round",
            "early_stopping_rounds",
            "objective",
            "enable_categorical",
        }:  # not of the learner
            continue
        assert name in known, name
        assert not default or same(default, known[name]), f"{name}={default}, found {known[name]}"


def parameters_of_lightgbm():
    return set(peer("lightgbm").basic._ConfigAliases._get_all_param_aliases())


def parameters_of_xgboost():
    """The names in the configuration of a trained model, and those of the scikit-learn interface."""
    xgboost = peer("xgboost")
    data = xgboost.DMatrix(np.eye(4), [0, 1, 0, 1], group=[2, 2], nthread=1)
    found = set(inspect.signature(xgboost.XGBModel.__init__).parameters) - {"self", "kwargs"}

    def collect(part):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(value, dict | list):
                collect(value)
            elif isinstance(value, str) and isinstance(key, str) and key != "name":
                found.add(key)

    for asked in ({"booster": "dart"}, {"tree_method": "hist"}, {"tree_method": "exact"}, {"tree_method": "approx"}):
        model = xgboost.train({"objective": "rank:ndcg", **asked}, data, 1)
        collect(json.loads(model.save_config())["learner"])
    return found


def parameters_of_catboost():
    catboost = peer("catboost")
    models = (catboost.CatBoostRanker, catboost.CatBoostRegressor, catboost.CatBoostClassifier)
    return set().union(*(inspect.signature(model.__init__).parameters for model in models)) - {"self"}


PARAMETERS = {"LightGBM": parameters_of_lightgbm, "XGBoost": parameters_of_xgboost, "CatBoost": parameters_of_catboost}


def listed(section):
    """Return the names of theirs that the page has, and which of them are translated to one of ours."""
    text = re.sub(r"```.*?```", "", SECTIONS[section] + SECTIONS[f"{section}'s other parameters"], flags=re.DOTALL)
    everywhere = set(re.findall(r"[a-z]\w*", " ".join(code(text))))
    translated = set()
    for theirs, ours, remarks in cells(section) + cells(f"{section}'s other parameters"):
        mine = {written.partition("=")[0] for written in code(ours) + code(remarks)}
        if mine & (DEFAULTS.keys() | OF_FIT):
            translated |= set(re.findall(r"[a-z]\w*", " ".join(code(theirs))))
    return everywhere, translated


@pytest.mark.parametrize("section", PARAMETERS)
def test_every_parameter_of_theirs_is_listed(section):
    names, (found, translated) = PARAMETERS[section](), listed(section)
    unlisted = sorted(names - found)
    assert not unlisted, f"{section}: say in docs/coming-from.md what stands for {', '.join(unlisted)}, or why nothing"
    assert len(names) > 70
    print(f"{section}: {len(names)} parameters, {len(names & translated)} of them translated")


@pytest.mark.parametrize("section", [f"{section}'s other parameters" for section in PARAMETERS])
def test_other_parameters_are_translated_to_ours_with_our_defaults(section):
    test_the_second_column_has_our_names_with_our_defaults(section)
    test_what_is_to_be_set_can_be_set(section)
