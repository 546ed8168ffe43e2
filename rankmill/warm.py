"""Compile every kernel ahead of time: ``rankmill warm``, for this machine, and `rankmill.shipped`, for others.

Numba compiles a kernel on its first call with each combination of argument types, and caches the machine code in
``NUMBA_CACHE_DIR`` for the CPU ``NUMBA_CPU_NAME``.  The commands below, on a few generated queries, call every kernel
with all types that occur (``many`` has enough rows for several threads), and every objective with every criterion.  A
test runs other commands afterwards and checks that nothing is compiled any more.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rankmill.foundation.storage.location import Location

_SHORT = {  # words of COMMANDS
    "TRAIN ": "train {folder}/dataset --name warm REGISTRY ",
    "REGISTRY": "--registry {folder}/registry",
    "SIZE": "--queries 60 --docs-per-query 12",
}
COMMANDS = """
data synth -o {folder}/judgments.txt SIZE --features 22
data synth -o {folder}/judgments.parquet SIZE --features 22
data synth -o {folder}/clicked.parquet SIZE --features 10 --clicks {folder}/clicks.parquet --sessions 2000
clicks describe {folder}/clicks.parquet
data ingest {folder}/judgments.parquet -o {folder}/from-parquet
data ingest {folder}/judgments.csv -o {folder}/from-csv
data ingest {folder}/judgments.tsv -o {folder}/from-tsv
data ingest {folder}/judgments.jsonl -o {folder}/from-jsonl
data ingest {folder}/columns.parquet -o {folder}/columns
data bin {folder}/columns
data ingest {folder}/bare.txt -o {folder}/bare --absent missing
data ingest {folder}/judgments.txt -o {folder}/dataset --split train=0.6,valid=0.2,test=0.2
data ingest {folder}/judgments.txt -o {folder}/preferred --pairs {folder}/pairs.txt
data ingest {folder}/judgments.txt -o {folder}/preferred --pairs {folder}/pairs.csv --overwrite
data describe {folder}/preferred
data bin {folder}/preferred
data bin {folder}/dataset --max-bin 15
data bin {folder}/dataset
data describe {folder}/dataset
data describe {folder}/dataset --against {folder}/preferred
TRAIN --n-rounds 4 --preset defaults-1 --max-leaves 6 --n-threads 2
TRAIN --n-rounds 3 --preset defaults-1 --gain linear --no-lambda-normalisation
TRAIN --n-rounds 6 --preset defaults-1 --max-leaves 6 --resume warm@1 --eval-metric map
TRAIN --n-rounds 3 --preset defaults-1 --query-fraction 0.8 --feature-fraction 0.5
TRAIN --n-rounds 3 --preset defaults-1 --row-fraction 0.5 --monotone f1:1
TRAIN --n-rounds 3 --preset defaults-1 --grow oblivious --max-depth 3 --objective l2
TRAIN --n-rounds 3 --preset defaults-1 --rounds-by oob --query-fraction 0.5 --objective l2
TRAIN --n-rounds 3 --preset defaults-1 --rounds-by test --step-search line
TRAIN --n-rounds 2 --preset defaults-1 --base-model warm@1
cv {folder}/dataset --folds 2 --n-rounds 2
TRAIN --n-rounds 3 --members 2
TRAIN --n-rounds 3 --bootstrap mvs --query-fraction 0.8 --random-strength 1
TRAIN --n-rounds 3 --boosting dart --skip-drop 0 --drop-rate 1
TRAIN --n-rounds 3 --boosting rf
TRAIN --n-rounds 3 --interaction-constraints f1,f2,f3 --feature-fraction-by-level 0.8 --extra-trees
data synth -o {folder}/categories.parquet SIZE --features 10 --categorical 8,300
data ingest {folder}/categories.parquet -o {folder}/categories --split train=0.6,test=0.4
data bin {folder}/categories
data describe {folder}/categories
train {folder}/categories --name categories REGISTRY --n-rounds 3 --min-rows-in-group 5 --encode-above 100
train {folder}/categories --name categories REGISTRY --n-rounds 3 --preset defaults-1 --min-rows-in-group 5
train {folder}/dataset --name blend REGISTRY
train {folder}/categories --name blend REGISTRY
rerank {folder}/judgments.txt --model blend@1 REGISTRY -o {folder}/of-blend --top-k 3
rerank {folder}/categories.parquet --model blend@2 REGISTRY -o {folder}/of-blends --top-k 3
evaluate {folder}/dataset --split test --model blend@1 REGISTRY
rerank {folder}/categories.parquet --model categories@1 REGISTRY -o {folder}/of-categories --top-k 3
inspect shap categories@1 REGISTRY --on {folder}/categories
TRAININGS
data synth -o {folder}/many.parquet --queries 900 --docs-per-query 80 --features 20
data ingest {folder}/many.parquet -o {folder}/many
data bin {folder}/many
train {folder}/many --name many REGISTRY --n-rounds 2 --preset defaults-1 --n-threads 2
train {folder}/many --name many REGISTRY --n-rounds 2 --n-threads 2
models promote warm@1 REGISTRY --force
models gate warm@2 REGISTRY --on {folder}/dataset --margin 1 --max-cost-ratio 99
models verify REGISTRY
rerank {folder}/judgments.txt --model warm REGISTRY -o {folder}/ranked --top-k 3
rerank {folder}/bare.txt --model warm REGISTRY -o {folder}/bare.tsv
rerank {folder}/judgments.parquet --model warm REGISTRY -o {folder}/ranked.run
rerank {folder}/judgments.csv --model warm REGISTRY -o {folder}/ranked.parquet
evaluate {folder}/ranked
evaluate {folder}/ranked METRICS
evaluate {folder}/ranked --metric map --metric precision@5 --map-normalisation min(R,k) --ties random --short-lists zero
explain-metric {folder}/ranked --qid 1 --metric ndcg@10 --ties expected
evaluate {folder}/dataset --split test --model mcrank@1 REGISTRY
evaluate {folder}/dataset --split test --model ordinal@1 REGISTRY
evaluate {folder}/bare.tsv --gain linear --nothing-relevant zero --ties pessimistic
evaluate {folder}/ranked.parquet --metric dcg --ties doc_id
evaluate {folder}/ranked.run --qrels {folder}/qrels --complete --ties doc_id_descending
evaluate {folder}/dataset --split test --model warm REGISTRY --ties optimistic
compare warm@1 warm@2 REGISTRY --on {folder}/dataset --split all
compare warm@1 warm@2 REGISTRY --on {folder}/dataset --split test --no-seeds
inspect influence warm REGISTRY
inspect dependence warm f1 REGISTRY
inspect dependence warm f1 f2 REGISTRY --on {folder}/dataset
inspect interaction warm f1 f2 REGISTRY --on {folder}/dataset --over documents
inspect shap warm REGISTRY --on {folder}/dataset
inspect shap warm REGISTRY --on {folder}/dataset --interactions
inspect why warm REGISTRY --on {folder}/dataset --qid 1
inspect combine warm warm@2 REGISTRY --on {folder}/dataset
inspect optimality warm REGISTRY --on {folder}/dataset --p0 0.5 --delta 0.5
"""


_SWAPPED = (
    "err@10",
    "map",
    "mrr",
    "precision@5",
    "rbp(p=0.8)",
    "concordance",
)  # a metric for each kind of swap deltas
_SPELLED = (
    "lambdamart(pair_fraction=0.5)",
    "apxdcg(exact=0)",
    "gbrank(keep=true)",
    "listnet(target=exp_grade)",
    "logistrank(leaf=newton)",
    "mcrank(score=gain)",
    "yetirank(noise=gumbel)",
    "yetirank(mode=metric)",
)
_NO_LOSS = ("gbrank",)
_NO_OFFSETS = ("mcrank", "ordinal")


def command_lines() -> Iterator[str]:
    """Yield the commands; ``{folder}`` is their working directory."""
    from rankmill.scorer.metrics.metric import MEASURES

    spelled = {name: f"{name}@5" for name, measure in MEASURES.items() if measure.cutoff == "needed"} | {
        "rbp": "rbp(p=0.8)"
    }
    metrics = " ".join(f"--metric {spelled.get(name, name)}" for name in MEASURES)
    for line in COMMANDS.strip().splitlines():
        if line == "TRAININGS":
            yield from _trainings()
        else:
            for short, long in (*_SHORT.items(), ("METRICS", metrics)):
                line = line.replace(short, long)  # noqa: PLW2901
            yield line
    if find_spec("distributed"):  # kernels that a cluster alone needs
        yield (
            "train {folder}/dataset --name clustered --registry {folder}/registry --n-rounds 2 --preset defaults-1 "
            "--cluster local:2"
        )


def _trainings() -> Iterator[str]:
    """Yield trainings with every objective and criterion, with and without optional columns."""
    from rankmill.trainer.objectives.registry import objective_class
    from rankmill.trainer.objectives.spelling import OBJECTIVES

    def line(dataset: str, objective: str, options: str) -> str:
        name = objective.partition("(")[0]
        measured = "" if name in _NO_LOSS else " --eval-metric deviance"
        return (
            f"train {{folder}}/{dataset} --name {name} --registry {{folder}}/registry --n-rounds 2 --max-leaves 4 "
            f"--preset defaults-1 --objective {shlex.quote(objective)} {options}{measured}"
        )

    for name in sorted(OBJECTIVES.keys() - {"user"}):
        kind = objective_class(name)
        other = "preferred" if name in _NO_OFFSETS else "columns"
        for dataset, criterion in itertools.zip_longest(("dataset", other), kind.splits.criteria):
            yield line(dataset or other, name, f"--criterion {criterion or kind.splits.criteria[0]}")
    for objective in _SPELLED:
        yield line("dataset", objective, "")
    for metric in _SWAPPED:
        yield line("dataset", "lambdamart", f"--metric {shlex.quote(metric)}")
    yield line("dataset", "stochasticrank", "--metric err")
    for options in (
        "--criterion ole --ole-pairs 0 --ole-features 0",
        "--leaf exact",
        "--grow oblivious",
        "--n-threads 2",
    ):
        yield line("preferred", "ranknet", options)
    yield line("dataset", "mcrank", "--step-search line --query-fraction 0.5 --rounds-by oob")
    yield line("dataset", "bernoulli", "--step-search line --row-fraction 0.5 --rounds-by oob")
    yield line("columns", "rankboost", "--rounds-by cv --folds 2 --monotone f1:1")


def warm(folder: Path) -> int:
    """Run the commands in the empty folder ``folder``, and return the number of compiled kernels.

    Raises
    ------
    RuntimeError
        A command failed; the message has its output.
    """
    from numba.core import event

    from rankmill.foundation.kernels.compiling import without_shipped_kernels

    with without_shipped_kernels(), event.install_recorder("numba:compile") as compiled:
        call_every_kernel(folder)
    return sum(record.is_start for _, record in compiled.buffer)


def call_every_kernel(folder: Path) -> tuple[dict[str, str], list[npt.NDArray[np.float64]]]:
    """Run the commands in the empty folder ``folder``, and call what they do not; RuntimeError as `warm`.

    Returns what each command prints, and the predictions of the models that are not in the folder.
    """
    printed = {}
    for line in command_lines():
        printed[line] = run_quietly(shlex.split(line.format(folder=shlex.quote(os.fspath(folder)))))
        if line.startswith("data synth") and "judgments.parquet" in line:
            _write_other_formats(folder)
    _bin_a_sample(folder / "dataset")
    _score_in_every_way(folder / "registry")
    _fit_click_models()
    return printed, [*_fit_arrays(), *_train_nets()]


def _fit_click_models() -> None:
    """Fit every click model to a small simulated log."""
    import numpy as np

    from rankmill.clicks.models.fit_log import compare_click_models
    from rankmill.clicks.options import ClickFitOptions, ClickSimulation
    from rankmill.clicks.simulate import QueriesToShow, simulate

    judged = QueriesToShow(np.arange(0, 41, 8), np.arange(40, dtype=np.int32) % 5)
    log = simulate(judged, [np.arange(40.0)], ClickSimulation(sessions=2000, randomised=0.5, list_length=4)).log
    compare_click_models(log, ClickFitOptions(policy="random", replicates=2))


def run_quietly(arguments: list[str]) -> str:
    """Run one command line and return what it prints; RuntimeError with its stderr if it fails."""
    from rankmill.cli import execute

    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = execute(arguments)
    if code:
        raise RuntimeError(f"rankmill {shlex.join(arguments)} left with {code}: {errors.getvalue()}")
    return printed.getvalue()


def _write_other_formats(folder: Path) -> None:
    """Write the generated rows as CSV and TSV, as LETOR text with omitted and missing values, and as judgments."""
    import numpy as np
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "judgments.parquet")
    grade = table.column("grade").to_numpy()
    row = np.arange(len(grade))
    optional = {
        "label": grade + 0.5,
        "event": (row % 2).astype(np.uint8),
        "weight": 1.0 + row % 3,
        "offset": (row % 5) / 8.0,
        "query_weight": 1.0 + np.char.str_len(table.column("qid").to_numpy().astype(str)),
    }
    columns = table
    for name, values in optional.items():
        columns = columns.append_column(name, pyarrow.array(np.asarray(values)))
    pyarrow.parquet.write_table(columns, folder / "columns.parquet")
    for suffix, delimiter in (("csv", ","), ("tsv", "\t")):
        options = pyarrow.csv.WriteOptions(delimiter=delimiter)
        pyarrow.csv.write_csv(table, folder / f"judgments.{suffix}", options)
    objects = (json.dumps(row, default=float) for row in table.slice(0, 50).to_pylist())
    (folder / "judgments.jsonl").write_text("\n".join(objects), encoding="utf-8")
    (folder / "bare.txt").write_text("".join(_bare_lines(folder / "judgments.txt")), encoding="utf-8")
    rows = zip(*(table.column(name).to_pylist() for name in ("qid", "doc_id", "grade")), strict=True)
    _write_pairs(folder, *(list(map(str, table.column(name).to_pylist())) for name in ("qid", "doc_id")))
    (folder / "qrels").write_text("".join(f"{qid} 0 {doc} {grade}\n" for qid, doc, grade in rows), encoding="utf-8")


def _write_pairs(folder: Path, qid: Sequence[str], doc_id: Sequence[str]) -> None:
    """Write pairs in which each document is better than the next one of its query."""
    rows = itertools.pairwise(zip(qid, doc_id, strict=True))
    pairs = [(query, better, worse) for (query, better), (other, worse) in rows if query == other]
    (folder / "pairs.txt").write_text("".join(f"{' '.join(pair)} 1 0.5\n" for pair in pairs), encoding="utf-8")
    lines = ["qid,better,worse,weight", *(f"{','.join(pair)},1" for pair in pairs)]
    (folder / "pairs.csv").write_text("\n".join(lines), encoding="utf-8")


def _bare_lines(path: Path) -> Iterator[str]:
    """Yield lines without document ids, with some features omitted and some marked as missing."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        grade, qid, *features = line.split("#")[0].split()
        kept = [f"{word.split(':')[0]}:NULL" if i == number % 7 else word for i, word in enumerate(features)]
        yield " ".join([grade, qid, *kept[: len(kept) - number % 3]]) + "\n"


def _bin_a_sample(folder: Path) -> None:
    """Bin a dataset as if it were too large for exact quantiles."""
    from rankmill.pipeline.bins.binning import bin_dataset, bin_plan
    from rankmill.pipeline.dataset.dataset import Dataset

    dataset = Dataset.open(folder)
    bin_dataset(dataset, 31, plan=replace(bin_plan(dataset), sampled_rows=100))


def _score_in_every_way(registry: Location) -> None:
    """Score with every kernel: walks and sweeps, usual and oblivious trees, both widths of codes."""
    import numpy as np

    from rankmill.registry import Registry
    from rankmill.scorer import _kernels, _tree_kernels
    from rankmill.scorer.forest.forest import Forest
    from rankmill.scorer.forest.layout import build_layout, search_of

    for version in Registry(registry).versions("warm"):  # some of them are oblivious
        forest = Forest.from_bytes(version.read())
        for code in (np.dtype(np.uint8), np.dtype(np.uint16)):
            layout = build_layout(forest, forest.n_trees, np.asarray(forest.used_features), code, swept=True)
            codes, at, scores = np.zeros((layout.n_slots + 1, 64), code), np.empty(64, code), np.zeros(64)
            _tree_kernels.wrap_codes(codes, 64, layout.wrapped, 0)
            values = np.zeros((1, 1), np.float32)
            values.flags.writeable = False
            columns, search = np.zeros(1, np.int64), search_of(forest, [0])
            _kernels.bin_rows(values, 0, 1, columns, np.float32(0.0), *search, codes)
            _kernels.bin_column(values[0], 0, 0, *search, np.zeros((1, 1, 64), code))
            for each in (layout, replace(layout, swept=None)):
                each.add_trees(codes, 64, np.arange(forest.n_trees, dtype=np.int32), at, scores, 0)
    keep = np.ones(2, dtype=np.bool_)
    _kernels.raise_bars(np.zeros(2, np.int64), np.zeros(2), np.empty((1, 1)), np.zeros(1, np.int64), np.zeros(1), keep)


def _fit_arrays() -> Iterator[npt.NDArray[np.float64]]:
    """Train on arrays in memory, whose layouts differ from those of the commands, and yield predictions."""
    import numpy as np

    from rankmill.python.ranker import Ranker
    from rankmill.trainer.objectives.spelling import OBJECTIVES

    generator = np.random.Generator(np.random.PCG64(1))
    x = generator.normal(size=(200, 5))
    grades, qid = generator.integers(0, 4, size=200), np.repeat(np.arange(20), 10)
    for preset in ("defaults-1", "auto-1"):
        ranker = Ranker(preset=preset, n_rounds=3).fit(x, grades, qid=qid, eval_set=(x, grades, qid))
        yield ranker.predict(x)
    for eval_set in (None, (x, grades, qid)):
        yield Ranker().fit(x, grades, qid=qid, eval_set=eval_set).predict(x)
    for objective in sorted(OBJECTIVES.keys() - {"user"}):
        ranker = Ranker(preset="defaults-1", n_rounds=2, max_leaves=4, objective=objective)
        yield ranker.fit(x, grades, qid=qid, sample_weight=generator.uniform(size=200)).predict(x)
    ranker = Ranker(preset="defaults-1", n_rounds=2, max_leaves=4, delta=_grade_difference)
    yield ranker.fit(x, grades, qid=qid).predict(x)


def _train_nets() -> Iterator[npt.NDArray[np.float64]]:
    """Train nets of every kind, and yield their scores."""
    import numpy as np

    from rankmill.trainer.data.rows import RankedRows
    from rankmill.trainer.nets.options import NetOptions, as_published
    from rankmill.trainer.nets.training import NetData, NetRows, train_net

    generator = np.random.Generator(np.random.PCG64(1))
    values = generator.normal(size=(200, 5)).astype(np.float32)
    values[:, 4] = generator.integers(0, 9, 200)
    values[:7] = np.nan
    grades, starts = generator.integers(0, 4, size=200).astype(np.int32), np.arange(0, 201, 10, dtype=np.int64)
    rows = NetRows(values, RankedRows(grades, starts, ()))
    data = NetData(train=rows, valid=rows, feature_names=list("abcde"), max_grade=3, categories={"e": []})
    numeric = replace(data, categories={})
    for each, options in (
        (data, NetOptions(epochs=1, input_noise=0.1)),
        (data, NetOptions(epochs=1, optimiser="sgd", layers=(), stop_metric="deviance")),
        (numeric, as_published(epochs=1)),
        (numeric, as_published(epochs=1, updates="pairs")),
    ):
        yield train_net(each, options).net.predict(values)


def _grade_difference(grades: npt.NDArray[np.int32], i: int, j: int) -> float:
    """Weight of a pair, like a user's own function."""
    return float(grades[i] - grades[j])


def warm_up() -> dict[str, str | int]:
    """Compile all missing kernels. Return how many were missing, for which CPU, and the folder that holds them."""
    from rankmill.foundation.kernels.compiling import cpu_and_folder

    with tempfile.TemporaryDirectory(prefix="rankmill-warm-") as folder:
        count = warm(Path(folder))
    cpu, kept_in = cpu_and_folder()
    return {"kernels": count, "cpu": cpu, "folder": kept_in}


def main() -> None:
    """Compile all kernels and print a summary, with ``--json`` as an object."""
    facts = warm_up()
    line = (
        json.dumps(facts)
        if "--json" in sys.argv
        else "compiled {kernels} kernels for {cpu} in {folder}".format(**facts)
    )
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
