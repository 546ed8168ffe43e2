"""The demo of clicks, with the public commands.

It simulates a log, makes naive and corrected judgments, and trains on each.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path

from rankmill.demo import MAX_GRADE, METRICS, make_room, table_of_means
from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.metrics import Policy, parse_metric

SESSIONS = 500  # for each query
NEW_QUERIES = 500
SIZE = ("--docs-per-query", "40", "--features", "20")
TRAINING = ("--objective", "lambdamart", "--n-rounds", "100")


@dataclass(frozen=True, slots=True)
class ClicksDemoReport:
    """Metrics of rankings of the same unseen candidates by true grades."""

    models: dict[str, dict[str, float]]
    """What the model was learnt from -> metric -> mean: the logging ranker, naive, corrected, true labels."""
    seed: int
    sessions: int

    @property
    def gap_closed(self) -> float:
        """What correction gains, as a share of what true labels gain over naive ones, in the first metric."""
        _, naive, corrected, labels = (means[METRICS[0]] for means in self.models.values())
        return (corrected - naive) / (labels - naive)

    def render(self, *, json: bool = False) -> str:
        """Return the final table as text, or one JSON object."""
        if json:
            return dumps({**asdict(self), "gap_closed": self.gap_closed}, sort_keys=True)
        lines = [
            "",
            f"The same candidates of {NEW_QUERIES:,} new queries, by their true grades (seed {self.seed}):",
            "",
            *table_of_means("learnt from", self.models),
            "",
            f"Correction closes {self.gap_closed:.0%} of the gap between naive clicks and true labels (NDCG@10). The "
            "simulated users are those of the click model; real users are not a model.",
        ]
        return "\n".join(lines)


def run_clicks_demo(
    out: Path,
    run_command: Callable[[Sequence[str]], object],
    say: Callable[[str], None],
    *,
    queries: int = 300,
    seed: int = 7,
) -> ClicksDemoReport:
    """Simulate users of a ranker that was trained on 1 % of the judgments, and learn from what they click.

    Parameters
    ----------
    out, run_command, say
        As for `rankmill.demo.run_demo`.
    queries, seed
        Number of queries that are asked, and seed; the judgments of the logging ranker and the new queries have the
        next seeds.

    Raises
    ------
    InputError
        ``out`` is a file, or a folder with other files.
    """
    make_room(out)
    registry = ("--registry", str(out / "registry"))
    few, judged, log, shown, pbm, new, ranked = (
        str(out / name)
        for name in ("few.parquet", "judged.parquet", "log.parquet", "shown.run", "pbm.json", "new.parquet", "ranked")
    )
    sessions = SESSIONS * queries

    def synth(path: str, n: int, seed: int) -> list[str]:
        return ["data", "synth", "-o", path, "--queries", str(n), *SIZE, "--seed", str(seed)]

    def trained(name: str, rows: str, *options: str, by: Sequence[str] = TRAINING) -> list[list[str]]:
        dataset = str(out / name)
        return [
            ["data", "ingest", rows, *options, "-o", dataset],
            ["data", "bin", dataset],
            ["train", dataset, "--name", name, *by, *registry],
        ]

    users = ["--overwrite", "--clicks", log, "--logger", shown, "--sessions", str(sessions), "--swapped", "0.1"]
    commands = [
        synth(few, max(queries // 100, 2), seed + 2),
        *trained("logger", few, by=("--n-rounds", "30")),
        synth(judged, queries, seed),
        ["rerank", judged, "--model", "logger@1", *registry, "-o", shown],
        [*synth(judged, queries, seed), *users],
        ["clicks", "describe", log],
        ["clicks", "fit", log, "--model", "pbm", "--replicates", "10", "-o", pbm],
    ]
    for name, options in (("naive", ()), ("corrected", ("--propensities", pbm))):
        labels = str(out / f"{name}.parquet")
        commands.append(["clicks", "judge", log, *options, "--as", "grades", "-o", labels])
        commands += trained(name, judged, "--qrels", labels)
    commands += trained("labels", judged)
    commands.append(synth(new, NEW_QUERIES, seed + 1))
    names = {
        "logger": "1 % of the judgments",
        "naive": "naive clicks",
        "corrected": "corrected clicks",
        "labels": "true labels",
    }
    models = [f"{name}@1" for name in names]
    commands.append(
        ["rerank", new, *(part for model in models for part in ("--model", model)), *registry, "-o", ranked]
    )
    for command in commands:
        say(f"\n$ rankmill {shlex.join(command)}")
        run_command(command)
    metrics, policy = [parse_metric(name) for name in METRICS], Policy(max_grade=MAX_GRADE)
    found = {
        words: evaluate_scored(Path(ranked, model), metrics, policy, replicates=0).means
        for model, words in zip(models, names.values(), strict=True)
    }
    return ClicksDemoReport(
        models={words: {str(metric): means[metric] for metric in metrics} for words, means in found.items()},
        seed=seed,
        sessions=sessions,
    )
