"""How much of the gap between naive clicks and true labels each correction of position bias closes, on simulated logs.

A ranker that was trained on a share of the judgments logs result lists of the train queries.  In a tenth of the
sessions two neighbours are swapped; otherwise no log of one ranker would distinguish position from relevance.  Users
click as one of the models of `rankmill.clicks.simulate` says.  Each correction makes labels or pairs for the documents
that were shown; the same trees learn from them; the test queries have true grades.  The limits of the gap are

    naive   click-through rates of documents, with shrinkage and weights (``clicks judge``)
    labels  the true probability of a click on an examined document, for the same documents

The share that a correction closes is (correction - naive) / (labels - naive), of NDCG@10 averaged over seeds; ``-`` if
that gap is below .01.  Corrections are the labels of ``clicks judge`` with the propensities of each click model (``pbm,
ips``: the estimate ips, else pbm), and ``pbm, pairs`` its pairs with ranknet.  Intervals are 95 % bootstrap intervals
of the paired difference from naive; queries and seeds are drawn anew. ``recommended`` is what ``clicks describe``
recommends: naive labels if it recommends no correction, or its model's propensities.

Each log is a small file in the cache; ``--shard 1/2`` and ``2/2`` fill one cache in two processes.

Example: python -m benchmarks.click_corrections --cache work --sessions 10000 100000 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.intervals import Differences, paired_interval
from benchmarks.report import render, surroundings, table
from rankmill import Ranker
from rankmill.clicks.judge import judge_documents
from rankmill.clicks.models.fit_log import ClickModelComparison, compare_click_models
from rankmill.clicks.options import ClickFitOptions, ClickSimulation, JudgeOptions
from rankmill.clicks.preferences import block_pairs
from rankmill.clicks.recommend import recommend
from rankmill.clicks.simulate import QueriesToShow, SimulatedLog, simulate
from rankmill.pipeline.judgments.propensities import Propensities
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import generate
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import evaluate_queries

Floats = npt.NDArray[np.float64]

NDCG = parse_metric("ndcg@10")
POLICY = Policy(max_grade=4, nothing_relevant="zero")
USERS = ("pbm-0.5", "pbm-1", "pbm-2", "cascade", "dcm", "ubm", "trust")
LOGGERS = ("random", "1 %", "5 %", "100 %")
SESSIONS = (10_000, 100_000, 1_000_000)
TRAIN_QUERIES, TEST_QUERIES, DOCUMENTS, FEATURES = 1000, 500, 20, 20
SWAPPED = 0.1
PAIRS_AT_MOST = 100_000  # sessions from which pairs are made
TREES: dict[str, Any] = {
    "preset": "defaults-1", "n_rounds": 100, "max_leaves": 16, "learning_rate": 0.1, "n_threads": 1, "verbose": 0,
}  # fmt: skip
SMALLEST_GAP = 0.01  # of NDCG, of which shares are printed
NAIVE, LABELS, RECOMMENDED = "naive", "labels", "recommended"


@dataclass(frozen=True)
class Judged:
    features: npt.NDArray[np.float32]
    grades: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]

    @property
    def query(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @classmethod
    def generated(cls, queries: int, seed: int) -> Judged:
        blocks = list(generate(SynthParameters(
            queries=queries, documents_per_query=DOCUMENTS, features=FEATURES, seed=seed
        )))  # fmt: skip
        sizes = np.concatenate([np.diff(block.starts) for block in blocks])
        return cls(
            np.concatenate([block.values.T for block in blocks]).astype(np.float32),
            np.concatenate([block.grades for block in blocks]).astype(np.int32),
            np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        )


@dataclass(frozen=True, order=True)
class Setting:
    user: str
    logger: str
    sessions: int
    seed: int

    @property
    def name(self) -> str:
        return "-".join(map(str, astuple(self))).replace(" %", "pc")


class Run:
    """One simulated log, and what is learnt from it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.train = Judged.generated(TRAIN_QUERIES, 2 * setting.seed)
        self.test = Judged.generated(TEST_QUERIES, 2 * setting.seed + 1)
        self.query = self.train.query
        name, _, eta = setting.user.partition("-")
        users = ClickSimulation(
            sessions=setting.sessions, user_model=name, eta=float(eta or 1), swapped=SWAPPED, popularity="zipf"  # type: ignore[arg-type]
        )  # fmt: skip
        self.log: SimulatedLog = simulate(
            QueriesToShow(self.train.start, self.train.grades), self._logger(), users, seed=setting.seed
        )
        (self.block,) = self.log.log.blocks()
        self.shown = np.bincount(self.block.lists.document, minlength=len(self.query)) > 0

    def _logger(self) -> list[Floats]:
        if self.setting.logger == "random":
            return []
        share = float(self.setting.logger.split()[0]) / 100
        judged = self.query < round(share * TRAIN_QUERIES)
        ranker = Ranker(objective="lambdamart", **TREES)
        ranker.fit(self.train.features[judged], self.train.grades[judged], qid=self.query[judged])
        return [ranker.predict(self.train.features)]

    def results(self) -> dict[str, Any]:
        """Return NDCG@10 (queries,) by correction, and what describe would say."""
        started = time.process_time()
        compared = compare_click_models(self.log.log, ClickFitOptions(replicates=0))
        recommended = recommend(self.log.log, compared, int(self.block.lists.clicked.sum()) / int(self.shown.sum()))
        found: dict[str, list[float]] = {}
        for name, values in self._corrections(compared):
            found[name] = values.tolist()
        model = recommended.model
        if model is None:
            found[RECOMMENDED] = found[NAIVE]
        elif model in compared.fitted:
            found[RECOMMENDED] = found.get(model) or self._learnt(compared.fitted[model].propensities).tolist()
        return {
            "setting": astuple(self.setting),
            "recommended": model,
            "reason": recommended.render(),
            "seconds": time.process_time() - started,
            "clicks": int(self.block.lists.clicked.sum()),
            "ndcg": found,
        }

    def _corrections(self, compared: ClickModelComparison) -> Iterator[tuple[str, Floats]]:
        yield NAIVE, self._learnt(None)
        yield LABELS, self._of_labels(self.log.relevance, None)
        for model in ("pbm", "allpairs", "cascade", "dcm", "ubm", "trust"):
            if model in compared.fitted:
                yield model, self._learnt(compared.fitted[model].propensities)
        if "pbm" in compared.fitted:
            yield "pbm, ips", self._learnt(compared.fitted["pbm"].propensities, "ips")
            if self.setting.sessions <= PAIRS_AT_MOST:
                yield "pbm, pairs", self._of_pairs(compared.fitted["pbm"].propensities)

    def _learnt(self, propensities: Propensities | None, estimate: Any = None) -> Floats:
        estimate = estimate or ("dctr" if propensities is None else "pbm")
        ((_, judged),) = judge_documents(self.log.log, JudgeOptions(estimate=estimate), propensities)
        return self._of_labels(judged.label, judged.weight)

    def _of_labels(self, labels: Floats, weights: Floats | None) -> Floats:
        rows = self.shown
        ranker = Ranker(objective="query_rmse", **TREES)
        ranker.fit(
            self.train.features[rows], labels[rows], qid=self.query[rows],
            sample_weight=None if weights is None else weights[rows],
        )  # fmt: skip
        return self._measured(ranker)

    def _of_pairs(self, propensities: Propensities) -> Floats:
        pairs = block_pairs(self.block, JudgeOptions(form="pairs"), propensities)
        ranker = Ranker(objective="ranknet", learn_from="pairs", **TREES)
        ranker.fit(
            self.train.features, np.zeros(len(self.query)), qid=self.query,
            pairs=np.column_stack([pairs.better, pairs.worse]), pair_weight=pairs.weight,
            pair_probability=pairs.probability,
        )  # fmt: skip
        return self._measured(ranker)

    def _measured(self, ranker: Ranker) -> Floats:
        scores = ranker.predict(self.test.features).astype(np.float64)
        return evaluate_queries([NDCG], scores, self.test.grades, self.test.start, POLICY)[NDCG]


def measure(cache: Path, settings: Sequence[Setting], say: Callable[[str], object] = print) -> list[dict[str, Any]]:
    """Return the results of all settings; those in the cache are not measured again."""
    found = []
    for setting in settings:
        file = cache / f"{setting.name}.json"
        if not file.exists():
            result = Run(setting).results()
            staged = file.with_suffix(f".{setting.seed}.part")
            staged.write_text(json.dumps(result))
            staged.replace(file)
            means = {name: round(float(np.mean(values)), 4) for name, values in result["ndcg"].items()}
            say(f"{setting.name}: {means}; {result['recommended']}, {result['seconds']:.0f} s")
        found.append(json.loads(file.read_text()))
    return found


def shares(results: Sequence[dict[str, Any]]) -> str:
    """Return the table: a row for each user model, logger and number of sessions."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for result in results:
        user, logger, sessions, _ = result["setting"]
        groups.setdefault((user, logger, sessions), []).append(result)
    columns = [name for name in results[0]["ndcg"] if name not in {NAIVE, LABELS, RECOMMENDED}]
    for result in results:
        columns += [name for name in result["ndcg"] if name not in {*columns, NAIVE, LABELS, RECOMMENDED}]
    rows = []
    for (user, logger, sessions), members in groups.items():
        mean = {
            name: float(np.mean([np.mean(one["ndcg"][name]) for one in members]))
            for name in (*columns, NAIVE, LABELS, RECOMMENDED)
            if all(name in one["ndcg"] for one in members)
        }
        gap = mean[LABELS] - mean[NAIVE]

        def share(name: str, mean: dict[str, float] = mean, gap: float = gap) -> str:
            if name not in mean:
                return ""
            return f"{(mean[name] - mean[NAIVE]) / gap:.0%}" if gap >= SMALLEST_GAP else "-"

        recommended = sorted({one["recommended"] or "none" for one in members})
        difference = paired_interval([Differences(
            [np.array(one["ndcg"][RECOMMENDED]) - np.array(one["ndcg"][NAIVE]) for one in members], redraw_folds=True
        )])  # fmt: skip
        rows.append([
            user, logger, f"{sessions:,}", str(len(members)), f"{mean[NAIVE]:.4f}", f"{mean[LABELS]:.4f}",
            *map(share, columns), "/".join(recommended), share(RECOMMENDED), str(difference),
        ])  # fmt: skip
    headings = [
        "users",
        "logger",
        "sessions",
        "seeds",
        NAIVE,
        LABELS,
        *columns,
        "describe says",
        RECOMMENDED,
        "minus naive",
    ]
    return table(headings, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--users", nargs="+", default=USERS, choices=USERS)
    parser.add_argument("--loggers", nargs="+", default=LOGGERS, choices=LOGGERS)
    parser.add_argument("--sessions", nargs="+", type=int, default=SESSIONS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--shard", default="1/1")
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    settings = [
        Setting(user, logger, sessions, seed)
        for seed, sessions, user, logger in product(given.seeds, given.sessions, given.users, given.loggers)
    ]
    number, of = map(int, given.shard.split("/"))
    results = measure(given.cache, settings[number - 1 :: of])
    if of == 1:
        results.sort(
            key=lambda result: (
                USERS.index(result["setting"][0]),
                LOGGERS.index(result["setting"][1]),
                result["setting"][2],
            )
        )
        print(render(surroundings()))
        print(shares(results))


if __name__ == "__main__":
    main()
