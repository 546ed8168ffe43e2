"""The recipes of docs/objectives/sources.md and docs/coming-from.md: they run, and do what the source that they name
does."""

import json
import re
import shlex
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.options import with_option_names
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.parameters import OLDEST, TrainParameters
from tests import ROOT
from tests.naive_pairs import frozen_pairs, swap_delta
from tests.scorer.exchange.exchange_cases import peer
from tests.trainer.fixed import FIXED
from tests.trainer.objectives.loss_cases import build, derivatives, merged
from tests.trainer.small_dataset import small_dataset

DOCS = ROOT / "docs"
RECIPES_PAGE, COMING_FROM = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("objectives/sources.md", "coming-from.md")
)
DEFAULTS = OLDEST.as_dict()
SIZES = (45, 12, 33, 2, 5)  # longer than the cutoffs, and shorter

# What the sources do: Burges 2010, 7; gbm guide, 4.8, and the defaults of R's gbm(); RankLib's LambdaMART
LEAST_SQUARES = {"criterion": "se", "lambda_normalisation": False, "min_hessian_in_leaf": 0.0}
FACTS = {
    "LambdaMART, Burges 2010": LEAST_SQUARES | {"gain": "exp"},
    "LambdaMART, gbm guide 4.8": LEAST_SQUARES | {"gain": "linear"},
    "LambdaMART of RankLib, NDCG@10": LEAST_SQUARES | {"gain": "exp", "min_rows_in_leaf": 1},
    "RankLib": LEAST_SQUARES
    | {"gain": "exp", "max_leaves": 10, "min_rows_in_leaf": 1, "learning_rate": 0.1, "n_rounds": 1000},
    "gbm (R)": LEAST_SQUARES
    | {"gain": "linear", "max_leaves": 2, "min_rows_in_leaf": 10, "query_fraction": 0.5, "n_rounds": 100},
}


def of_table():
    """The parameters of every row of the table of recipes, by what they reproduce."""
    section = RECIPES_PAGE.split("## Recipes")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ") and "`" in line]
    return {row[0].removeprefix("| "): FIXED | eval(f"dict({row[1].strip('`')})") for row in rows}


def commands():
    """The words of every training in coming-from.md, by the tool."""
    found = {}
    for part in re.split(r"^## ", COMING_FROM, flags=re.MULTILINE)[1:]:
        for line in re.findall(r"^rankmill train .*$", part, flags=re.MULTILINE):
            found[part.partition("\n")[0]] = shlex.split(line.split(" #")[0])[1:]
    return found


RECIPES, COMMANDS = of_table(), commands()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("recipes"), queries=60).path


@pytest.fixture(scope="module")
def parameters(dataset, tmp_path_factory):
    """What the command of a tool trains with; it is run with two rounds."""
    registry = str(tmp_path_factory.mktemp("registry") / "r")

    def run(tool):
        name = re.sub(r"\W+", "-", tool).strip("-").lower()
        words = ["train", str(dataset), *COMMANDS[tool][2:], "--n-threads", "1", "--registry", registry]
        words[words.index("--name") + 1] = name
        rounds = DEFAULTS["n_rounds"]
        if "--n-rounds" in words:
            at = words.index("--n-rounds")
            rounds = int(words[at + 1])
            del words[at : at + 2]
        ask(*words, "--n-rounds", "2")
        shown = json.loads(ask("models", "show", f"{name}@latest", "--registry", registry, "--json"))
        found = Forest.from_bytes(Path(shown["model_path"]).read_bytes()).parameters
        return {**with_option_names(found), "n_rounds": rounds}

    return run


def ask(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def lists(seed=0):
    """Rows of a few long and short lists, with distinct scores."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(SIZES))).astype(np.int64)
    grades = np.minimum(rng.geometric(0.5, size=starts[-1]) - 1, 4).astype(np.int32)
    return RankedRows(grades, starts, []), rng.permutation(int(starts[-1])) / 20.0


def by_definition(rows, scores, metric, gain, *, per_pair=False, tail=False, truncation=10**9):
    """g and h over all pairs, weighed by what swapping their ranks does to the metric."""
    policy = Policy(gain=gain, max_grade=int(rows.grades.max()))
    delta = partial(swap_delta, parse_metric(metric), policy=policy, tail=tail)
    found = [
        frozen_pairs(
            scores[a:b].tolist(), rows.grades[a:b].tolist(), first=int(a), per_pair=per_pair,
            truncation=truncation,
            delta=lambda ranked, i, j: delta(grades=ranked, i=i, j=j),
        )
        for a, b in pairwise(rows.starts)
    ]  # fmt: skip
    return merged(found, scores)[:2]


def lambdas(settings, rows, scores):
    settings = {name: value for name, value in settings.items() if name in DEFAULTS}
    return derivatives(build(rows, **settings), scores)


DEFINED = {
    "LambdaMART, Burges 2010": {"metric": "ndcg@10", "gain": "exp"},
    "LambdaMART, gbm guide 4.8": {"metric": "ndcg", "gain": "linear", "per_pair": True},
    "LambdaMART of RankLib, NDCG@10": {"metric": "ndcg@10", "gain": "exp", "tail": True, "truncation": 10},
}


@pytest.mark.parametrize("source", DEFINED)
def test_a_recipe_has_the_lambdas_of_its_source(source):
    rows, scores = lists()
    g, h = lambdas(RECIPES[source], rows, scores)
    expected = by_definition(rows, scores, **DEFINED[source])
    np.testing.assert_allclose(g, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(h, expected[1], rtol=1e-9, atol=1e-12)
    assert {name: TrainParameters(**RECIPES[source]).as_dict()[name] for name in FACTS[source]} == FACTS[source]


def test_every_recipe_of_the_table_names_existing_settings():
    assert len(RECIPES) >= 11
    for source, settings in RECIPES.items():
        made = TrainParameters(**settings)
        kind = objective_class(made.objective.partition("(")[0])
        assert made.criterion in {"", *kind.splits.criteria}, source


@pytest.mark.parametrize("tool", COMMANDS)
def test_the_training_of_a_tool_runs(tool, parameters):
    found = parameters(tool)
    facts = FACTS.get(tool, {})
    assert {name: found[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("tool", "defined"),
    [
        ("gbm (R)", {"metric": "ndcg", "gain": "linear", "per_pair": True}),
        ("RankLib", {"metric": "err@10", "gain": "exp"}),  # of ERR itself: see the remark there
    ],
)
def test_the_training_of_a_tool_has_the_lambdas_of_its_metric(tool, defined, parameters):
    rows, scores = lists(1)
    g, h = lambdas(parameters(tool), rows, scores)
    expected = by_definition(rows, scores, **defined)
    np.testing.assert_allclose(g, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(h, expected[1], rtol=1e-9, atol=1e-12)


def leaves_of_ours(g, h, side):
    return [-g[side == one].sum() / h[side == one].sum() for one in (0, 1)]


@pytest.mark.parametrize("settings", ["LightGBM", "LightGBM lambdarank"])
def test_lightgbm_steps_as_the_recipe_does(settings, parameters):
    """Leaves of documents of all queries: they weigh queries, pairs and hessians against each other."""
    lightgbm = peer("lightgbm")
    rows, scores = lists(2)
    g, h = lambdas(parameters(settings) if settings in COMMANDS else RECIPES[settings], rows, scores)
    rng = np.random.default_rng(3)
    for _ in range(3):
        side = rng.integers(0, 2, rows.n_rows)
        x = side[:, None].astype(float)
        data = lightgbm.Dataset(x, rows.grades, group=list(SIZES), init_score=scores)
        settings_there = {
            "objective": "lambdarank", "num_leaves": 2, "learning_rate": 1.0, "min_data_in_leaf": 1,
            "min_sum_hessian_in_leaf": 0.0, "verbose": -1, "num_threads": 1,
        }  # fmt: skip
        found = lightgbm.train(settings_there, data, 1).predict(np.array([[0.0], [1.0]]), raw_score=True)
        assert found == pytest.approx(leaves_of_ours(g, h, side), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("settings", ["XGBoost", "XGBoost rank:ndcg"])
def test_xgboost_steps_half_as_far_as_the_recipe_does(settings, parameters):
    xgboost = peer("xgboost")
    rows, scores = lists(4)
    g, h = lambdas(parameters(settings) if settings in COMMANDS else RECIPES[settings], rows, scores)
    rng = np.random.default_rng(5)
    for _ in range(3):
        side = rng.integers(0, 2, rows.n_rows)
        x = side[:, None].astype(float)
        data = xgboost.DMatrix(x, rows.grades, group=list(SIZES), base_margin=scores, nthread=1)
        settings_there = {
            "objective": "rank:ndcg", "max_depth": 1, "eta": 1.0, "lambda": 0.0, "min_child_weight": 0.0, "nthread": 1,
        }  # fmt: skip
        model = xgboost.train(settings_there, data, 1)
        ask = xgboost.DMatrix(np.array([[0.0], [1.0]]), base_margin=np.zeros(2), nthread=1)
        found = model.predict(ask, output_margin=True)
        assert 2 * found == pytest.approx(leaves_of_ours(g, h, side), rel=1e-3, abs=1e-5)
