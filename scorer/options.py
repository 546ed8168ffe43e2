"""Options for scoring candidates and re-ranking, declared once.  Importing this module is cheap."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from rankmill.foundation.cluster.options import ClusterOptions
from rankmill.foundation.cores import available_cores
from rankmill.foundation.options import option, option_like, options
from rankmill.foundation.units import MIN_MEMORY
from rankmill.pipeline.options import MEMORY, Absent, Format, IngestOptions, ReadOptions
from rankmill.scorer.metrics.metric import DEFAULT_METRICS, Metric

THREADS = "Number of threads; 0: all cores.  Does not change the result."
SPLIT = (
    "Split of the dataset: train, valid, test or all.  Default: test, or valid if there is no test split.  For a "
    "dataset that the models were not trained on: all."
)
CONVENTION = (
    "Compute metrics as this tool does: rankmill, trec, gdeval, lightgbm, xgboost, catboost, ranklib, letor4, mslr, "
    "yahoo or sklearn.  Options for single rules, such as --ties, override it."
)
QRELS = "Judgments: TREC lines, or a table with qid, doc_id and grade.  They override grades in the input."
Lacking = Literal["reject", "drop"]


@options
class CandidateOptions:
    """How to read and score candidates.  ``announce`` prints inferred columns and progress on stderr."""

    format: Format = option_like(
        IngestOptions,
        "format",
        default="auto",
        help="Format of the files. auto: by suffix.",
        choices=get_args(Format),
    )
    absent: Absent | None = option_like(ReadOptions, "absent", default=None, otherwise="as in training")
    index_base: Literal[0, 1] | None = option_like(ReadOptions, "index_base", default=None, otherwise="as in training")
    n_features: int | None = option_like(ReadOptions, "n_features", default=None)
    delimiter: str | None = option_like(ReadOptions, "delimiter", default=None)
    decimal_comma: bool = option_like(ReadOptions, "decimal_comma", default=False)
    columns: Mapping[str, str] | None = option_like(
        ReadOptions,
        "columns",
        default=None,
        help="Map columns of tables to their roles: qid=query_id,doc_id=url, and grade=rel to evaluate; repeat for "
        "more.",
    )
    n_rounds: int | None = option(
        default=None, help="Use only N rounds of the model, the first ones unless --start-round says otherwise."
    )
    start_round: int = option(
        default=0, help="Skip the first N rounds of the model, and its base score, which belongs to them.", least=0
    )
    n_threads: int = option(default=0, help=THREADS, least=0)
    announce: bool = option(default=False, help="Print inferred columns and progress on stderr.", on_command_line=False)

    @property
    def threads(self) -> int:
        """The number of threads to use; 0 is replaced by the number of cores."""
        return self.n_threads or available_cores()


@options
class RerankOptions(CandidateOptions):
    """How to re-rank.

    With ``top_k``, the counts of each grade in a query's whole list are written too (``_grades.pq``, or
    ``OUT.grades.parquet`` next to a .parquet file OUT, and next to text with ``grade_counts``).  With them, an
    evaluation of the top k still knows the ideal list.  A document may be in several files of ``run``, once in each; it
    must have one row.  A killed run with the same model, candidates and options is resumed unless ``fresh``; the output
    has the same bytes.
    """

    top_k: int | None = option(default=None, help="Write only the top k documents of each query.", least=1)
    keep: Sequence[str] = option(
        default=(),
        help="Columns of the candidates to copy into the list: title,price; repeat for more.",
        read=tuple,
        repeat=True,
        metavar="NAME,..",
    )
    grade_counts: bool = option(
        default=False,
        help="With --top-k and a text file OUT: also write OUT.grades.parquet, by which evaluate knows the grades "
        "below the top k.",
    )
    memory: int = option(default="2GB", help=MEMORY, size=True, least=MIN_MEMORY)
    run: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = option(
        default=(),
        help="TREC run of a first-stage ranker, or a folder of runs.  Rank only the documents that it lists; their "
        "features come from CANDIDATES.  Repeat for several.",
        read=lambda paths: tuple(map(Path, paths)),
        repeat=True,
        metavar="FILE",
    )
    lacking: Lacking = option(
        default="reject",
        help="How to treat documents of a run without a row in CANDIDATES: reject the input, or drop and count them.",
        choices=get_args(Lacking),
    )
    overwrite: bool = option(
        default=False, help="Overwrite OUT if it exists.  A folder is overwritten only if it holds ranked lists."
    )
    cluster: str | None = option_like(ClusterOptions, "cluster", default=None)
    fresh: bool = option(default=False, help="Start over, even if a killed run could be resumed.")


@options
class JudgedOptions(CandidateOptions):
    """Which metrics to compute, on which queries, with which judgments.

    `Policy` has the options for single conventions.

    ``by`` is ``query_size``, ``grade_mix``, or a column of the subject (see `rankmill.scorer.evaluate.slices`).
    """

    metrics: Sequence[str | Metric] = option(
        default=DEFAULT_METRICS,
        help="Metric to compute; repeat for several.  Default: ndcg@1, @5, @10, err@10, map, mrr and precision@10.  "
        "Others: dcg, recall@k, wta, rbp(0.8), concordance, concordance_micro and balanced_error; ndcg@10:bought is "
        "by the grades of the goal bought.",
        flags=("--metric",),
        read=tuple,
        repeat=True,
    )
    convention: str = option(default="rankmill", help=CONVENTION)
    qrels: str | os.PathLike[str] | None = option(default=None, help=QRELS, read=Path, metavar="<path>")
    split: str | None = option(default=None, help=SPLIT)
    cluster: str | None = option_like(ClusterOptions, "cluster", default=None)
    complete: bool = option(
        default=False, help="With --qrels: count judged queries that are missing from the run, with the value 0."
    )
    by: Sequence[str] = option(
        default=(),
        help="Also report metrics by group of queries: by a column of the input, query_size or grade_mix; repeat for "
        "several.",
        metavar="COLUMN",
        read=tuple,
        repeat=True,
    )


@options
class Selection(CandidateOptions):
    """Which documents to inspect, in a split or in all candidates.

    They are those of the queries ``qids``, or of a sample of ``n_queries``.
    """

    split: str | None = option(default=None, help=SPLIT)
    qids: tuple[str, ...] = option(
        default=(),
        help="Inspect this query; repeat for several.  Overrides --queries.",
        flags=("--qid",),
        read=tuple,
        repeat=True,
    )
    n_queries: int = option(
        default=0, help="Maximum number of queries to sample; 0: all.", flags=("--queries",), least=0
    )
    seed: int = option(default=0, help="Seed of the sample of queries.", least=0, most=2**63 - 1)


@options
class ConvertOptions:
    """How to write a model for another tool, or read one from its file."""

    name: str | None = option(
        default=None,
        help="With --from: register the model under this name.  With --to: the name of the model in Solr, ONNX and C.",
    )
    features: str | None = option(
        default=None,
        help="New names for the features, in the model's order: a list with commas (f1..f46 is 46 names), or a file "
        "with one name per line.",
        metavar="A,B,..|FILE",
    )
    missing: str = option(
        default="keep",
        help="With --to: how to treat missing values.  keep: as the model does; zero: like the value 0.",
    )
    nearest_thresholds: bool = option(
        default=False, help="With --to solr: if a threshold has no exact form, use the nearest one."
    )
    absent: str | None = option(
        default=None,
        help="With --from: how that tool treated features absent from LETOR text: zero or missing.",
    )
    n_rounds: int | None = option(default=None, help="Convert only the first N rounds of the model.")


@options
class MoveOptions:
    """How to move leaf values or weights to test whether they are a local maximum."""

    step: float = option(
        default=0.1, help="Length of a step, as a share of the norm of the vector of leaf values or weights."
    )
    p0: float = option(
        default=0.01,
        help="Draw enough random directions that, if none of them improves the metric, fewer than this share of all "
        "directions do, with confidence 1 - delta.",
    )
    delta: float = option(default=0.01, help="Accepted chance of being wrong about --p0.")
    n_curves: int = option(
        default=0, help="Also move this many leaves of trees one at a time.", flags=("--curves",), least=0
    )
