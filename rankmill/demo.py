"""The whole pipeline on generated judgments, with the public commands; each is printed before it runs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import values_of
from rankmill.gate.rankings import GradedQueries, best_single_feature
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.synth import ideal_scores
from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.conventions import as_convention
from rankmill.scorer.metrics.per_query import evaluate_queries, mean_of

METRICS = ("ndcg@10", "err@10", "map")
MAX_GRADE = 4
NEW_QUERIES = 4  # number of judged queries for each new one
MARK = ".rankmill-demo"  # marks a folder of the demo, which may be replaced


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Metrics of several orders of the same unseen candidates, and the paths of the files written."""

    orders: dict[str, dict[str, float]]  # name of the order -> metric -> mean over the queries that count
    queries: int
    policy: Policy
    written: dict[str, str]  # what -> path

    @property
    def share_won(self) -> float:
        """The gain of the model over the first order, as a share of the gain of the last order, in the first metric."""
        first, *_, model, last = (means[METRICS[0]] for means in self.orders.values())
        return (model - first) / (last - first)

    def render(self, *, json: bool = False) -> str:
        """Return the final table as text, or one JSON object."""
        if json:
            facts = {"orders": self.orders, "share_won": self.share_won, "queries": self.queries}
            return dumps({**facts, "policy": values_of(self.policy), "written": self.written}, sort_keys=True)
        width = max(map(len, self.written))
        lines = [
            "",
            f"The same candidates of {self.queries:,} new queries in four orders:",
            "",
            *table_of_means("", self.orders),
            "",
            f"The last order is the best that a ranker can reach. The model closes {self.share_won:.0%} of the gap "
            "between the first order and the last (NDCG@10).",
            f"Conventions: {self.policy.describe()}.",
            "",
            "Written:",
            *(f"  {what:<{width}}  {path}" for what, path in self.written.items()),
        ]
        return "\n".join(lines)


def table_of_means(head: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line of headings and a line for each of ``rows`` with its means."""
    width = max(map(len, rows))
    lines = [" ".join([f"{head:<{width}}", *(f"{name.upper():>9}" for name in METRICS)])]
    return lines + [
        " ".join([f"{name:<{width}}", *(f"{means[metric]:>9.4f}" for metric in METRICS)])
        for name, means in rows.items()
    ]


def run_demo(
    out: Path,
    run_command: Callable[[Sequence[str]], object],
    say: Callable[[str], None],
    *,
    queries: int = 1200,
    seed: int = 7,
) -> DemoReport:
    """Generate judgments, train on them, and rank candidates of unseen queries.

    Parameters
    ----------
    out
        Folder for all files; one of an earlier demo is replaced.
    run_command
        Runs one command line, without the word ``rankmill``.
    say
        Called with each command line before it runs.
    queries, seed
        Size and seed of the generated judgments; the candidates come from the same generator with the next seed.

    Raises
    ------
    InputError
        ``out`` is a file, or a folder with other files.
    """
    make_room(out)
    new_queries = max(queries // NEW_QUERIES, 1)
    path = {
        "judgments": out / "judgments.txt",
        "dataset": out / "dataset",
        "registry": out / "registry",
        "candidates": out / "candidates.txt",
        "ranked lists": out / "ranked",
        "report": out / "report" / "index.html",
    }
    text = {name: str(place) for name, place in path.items()}
    for command in (
        ["data", "synth", "-o", text["judgments"], "--queries", str(queries), "--seed", str(seed)],
        ["data", "ingest", text["judgments"], "-o", text["dataset"], "--split", "train=0.7,valid=0.15,test=0.15"],
        ["data", "bin", text["dataset"]],
        ["train", text["dataset"], "--name", "demo", "--registry", text["registry"], "--budget", "fast"],
        ["models", "gate", "demo@1", "--on", text["dataset"], "--registry", text["registry"]],
        ["models", "promote", "demo@1", "--registry", text["registry"], "--reason", "first of the demo"],
        ["models", "list", "--registry", text["registry"]],
        ["data", "synth", "-o", text["candidates"], "--queries", str(new_queries), "--seed", str(seed + 1)],
        ["rerank", text["candidates"], "--model", "demo", "--registry", text["registry"], "-o", text["ranked lists"]],
        ["evaluate", text["ranked lists"], *(part for name in METRICS for part in ("--metric", name))],
        ["report", "demo@1", "--on", text["dataset"], "--registry", text["registry"], "-o", str(path["report"].parent)],
    ):
        say(f"\n$ rankmill {shlex.join(command)}")
        run_command(command)
    policy = Policy(max_grade=MAX_GRADE)
    return DemoReport(
        orders=_compare(path["dataset"], path["candidates"], path["ranked lists"], policy),
        queries=new_queries,
        policy=policy,
        written=text,
    )


def make_room(out: Path) -> None:
    """Make ``out`` an empty, marked folder; the files of an earlier demo are removed."""
    if out.exists():
        if not (out / MARK).is_file():
            raise InputError(
                f"{out}: exists already and is not from an earlier demo; move it, or choose another folder with --out"
            )
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARK).touch()


def _compare(dataset: Path, candidates: Path, ranked: Path, policy: Policy) -> dict[str, dict[str, float]]:
    """Evaluate four orders of ``candidates``; the single feature is chosen on the training data."""
    metrics = [parse_metric(name) for name in METRICS]
    judged = GradedQueries.of(Dataset.open(dataset), "train", as_convention(policy), metrics[:1])
    single = best_single_feature(judged, metrics[0])
    model = evaluate_scored(ranked, metrics, policy, replicates=0).means
    lists = _read_lists(candidates)

    def means(scores: npt.NDArray[np.float64]) -> dict[str, float]:
        values = evaluate_queries(metrics, scores, lists.grades, lists.starts, policy)
        return {str(metric): mean_of(values[metric]) for metric in metrics}

    return {
        "as they came": means(-np.arange(len(lists.grades), dtype=np.float64)),
        f"best single feature ({single.name})": means(single.scores(lists.values[:, single.column])),
        "the model": {str(metric): model[metric] for metric in metrics},
        "the planted signal itself": means(ideal_scores(lists.values)),
    }


@dataclass(frozen=True, slots=True)
class _Lists:
    grades: npt.NDArray[np.int32]  # (n,)
    starts: npt.NDArray[np.int64]  # (queries + 1,)
    values: npt.NDArray[np.float32]  # (n, features)


def _read_lists(path: Path) -> _Lists:
    """Read generated candidates, which are grouped by query."""
    batches = list(open_source(path, "letor", ReadOptions()).batches())
    qids = np.concatenate([batch.qid.to_numpy(zero_copy_only=False) for batch in batches])
    width = max(batch.values.shape[1] for batch in batches)
    values = [np.pad(batch.values, ((0, 0), (0, width - batch.values.shape[1]))) for batch in batches]
    first = np.flatnonzero(np.concatenate([[True], qids[1:] != qids[:-1]]))
    return _Lists(
        grades=np.concatenate([batch.grade for batch in batches if batch.grade is not None]),
        starts=np.append(first, len(qids)),
        values=np.concatenate(values),
    )
