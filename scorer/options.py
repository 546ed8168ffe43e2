"""The options of scoring candidates and of re-ranking, declared once.  Nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from rankmill.foundation.cores import available_cores
from rankmill.foundation.options import option, option_like, options
from rankmill.foundation.units import MIN_MEMORY
from rankmill.pipeline.options import MEMORY, Absent, Format, IngestOptions, ReadOptions
from rankmill.scorer.metrics.metric import DEFAULT_METRICS, Metric

THREADS = "Threads; 0: the cores there are.  Never changes the result."
SPLIT = (
    "Split of a dataset: train, valid, test, or all.  By default what the models have not seen in training: test, else"
    " valid; all of a dataset that they were not trained on."
)
CONVENTION = (
    "Whose conventions: rankmill, trec, gdeval, lightgbm, xgboost, catboost, ranklib, letor4, mslr, yahoo, "
    "sklearn.  Options of single conventions rule over it."
)
QRELS = "TREC judgments; they rule over grades in the file."
Lacking = Literal["reject", "drop"]


@options
class CandidateOptions:
    """How candidates are read and scored; ``announce`` prints on stderr which columns were inferred, and how far a re-ranking is."""

    format: Format = option_like(IngestOptions, "format", default="auto")
    absent: Absent | None = option_like(ReadOptions, "absent", default=None, otherwise="as in training")
    index_base: Literal[0, 1] | None = option_like(ReadOptions, "index_base", default=None, otherwise="as in training")
    n_features: int | None = option_like(ReadOptions, "n_features", default=None)
    columns: Mapping[str, str] | None = option_like(ReadOptions, "columns", default=None)
    n_rounds: int | None = option(default=None, help="Use only so many rounds of the model.")
    n_threads: int = option(default=0, help=THREADS, least=0)
    announce: bool = option(
        default=False, help="Print on stderr what was inferred, and progress.", on_command_line=False
    )

    @property
    def threads(self) -> int:
        """The number of threads that this means here."""
        return self.n_threads or available_cores()


@options
class RerankOptions(CandidateOptions):
    """How to re-rank.

    With ``top_k`` it is also written how often each grade occurs in a query's whole list (``_grades.pq``, or
    ``OUT.grades.parquet`` beside a single file OUT), so that an evaluation of the written part still knows the ideal list.  A
    document of ``run`` may be in several runs, once in each; it must have one row.  A killed run with the same model, candidates
    and options is resumed unless ``fresh``; the bytes are the same.
    """

    top_k: int | None = option(default=None, help="Write only the first so many of each query.", least=1)
    memory: int = option(default="2GB", help=MEMORY, size=True, least=MIN_MEMORY)
    run: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = option(
        default=(),
        help="TREC run of a first stage, or a folder of them: only its documents are ranked, by their rows in CANDIDATES."
        "  Repeat for several.",
        read=lambda paths: tuple(map(Path, paths)),
        repeat=True,
        metavar="FILE",
    )
    lacking: Lacking = option(
        default="reject",
        help="Documents of a run that have no row in CANDIDATES: reject, or drop and count them.",
        choices=get_args(Lacking),
    )
    overwrite: bool = option(
        default=False, help="Replace OUT if it exists; a folder only if it is one of ranked lists."
    )
    fresh: bool = option(default=False, help="Start over, where a run that was killed could be gone on with.")


@options
class JudgedOptions(CandidateOptions):
    """What is measured, on which queries and by which judgments; options of single conventions come beside it.

    ``by`` is ``query_size``, ``grade_mix``, or a column of the subject (see `rankmill.scorer.slices`).
    """

    metrics: Sequence[str | Metric] = option(
        default=DEFAULT_METRICS,
        help="Repeat for several; by default ndcg@1, @5, @10, err@10, map, mrr and precision@10.  Also dcg, recall@k, "
        "wta, rbp(0.8), concordance, concordance_micro and balanced_error.",
        flags=("--metric",),
        read=tuple,
        repeat=True,
    )
    convention: str = option(default="rankmill", help=CONVENTION)
    qrels: str | os.PathLike[str] | None = option(default=None, help=QRELS, read=Path, metavar="<path>")
    split: str | None = option(default=None, help=SPLIT)
    complete: bool = option(default=False, help="With qrels: count judged queries that a run lacks.")
    by: Sequence[str] = option(
        default=(),
        help="Slice the queries by a column of the subject, by query_size, or by grade_mix; repeat for several.",
        metavar="COLUMN",
        read=tuple,
        repeat=True,
    )


@options
class Selection(CandidateOptions):
    """Which documents are inspected: all of the queries ``qids``, or ``n_queries`` drawn ones, of a split or of all candidates."""

    split: str | None = option(default=None, help=SPLIT)
    qids: tuple[str, ...] = option(
        default=(),
        help="Look at this query; repeat for several.  Rules over --queries.",
        flags=("--qid",),
        read=tuple,
        repeat=True,
    )
    n_queries: int = option(default=0, help="Draw at most so many queries; 0: all.", flags=("--queries",), least=0)
    seed: int = option(default=0, help="Which queries are drawn, where not all are taken.", least=0, most=2**63 - 1)


@options
class ConvertOptions:
    """How a model is written for another tool, or read from its file."""

    name: str | None = option(
        default=None,
        help="With --from: register the model under this name.  With --to: what Solr, ONNX and C call it.",
    )
    features: str | None = option(
        default=None,
        help="Other names for the features, in the model's order: between commas (f1..f46 is 46 of them), or a file with one a line.",
        metavar="A,B,..|FILE",
    )
    missing: str = option(
        default="keep",
        help="With --to: keep sends missing values where the model does; zero sends them where 0 goes.",
    )
    nearest_thresholds: bool = option(
        default=False, help="For solr: take the nearest where it cannot have a threshold."
    )
    absent: str | None = option(
        default=None,
        help="With --from: what a feature left out of LETOR text was to that tool: zero or missing.",
    )
    n_rounds: int | None = option(default=None, help="Take only so many rounds of the model.")


@options
class MoveOptions:
    """How leaf values are moved to see whether they are a local maximum."""

    step: float = option(default=0.1, help="How far to go, as a share of the length of the vector of leaf values.")
    p0: float = option(default=0.01, help="Draw directions until the share that rise is known to be below this ..")
    delta: float = option(default=0.01, help=".. with confidence 1 - delta, where none does.")
    n_curves: int = option(default=0, help="Also move so many leaves one at a time.", flags=("--curves",), least=0)
