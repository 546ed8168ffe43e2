"""Fit a ranker on the workers of a cluster, from a Dask DataFrame.

The workers write the partitions into a folder, ingest and bin them as a dataset, and train on it::

    Dask DataFrame  ->  Parquet, a file a partition  ->  dataset  ->  bins  ->  trees

So the rows of a query may be in any partitions, and the model has the bytes of ``rankmill train`` on a dataset of the
same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.cluster.workers import Cluster, open_cluster
from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.foundation.storage.staging import scratch_folder
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.grades import note_on_gains
from rankmill.python.arrays import names_in
from rankmill.python.binned_rows import BinningOptions
from rankmill.python.dask_rows import DaskRows
from rankmill.python.given_rows import FitColumns, unpacked
from rankmill.trainer.cluster.train_on_cluster import train_on_cluster
from rankmill.trainer.incompatible import check_cluster
from rankmill.trainer.nets.options import NET
from rankmill.trainer.presets import alone_line, choices_line, shape_of_dataset, with_preset
from rankmill.trainer.progress import to_stderr, verbosely
from rankmill.trainer.rounds.checkpoints import training_key
from rankmill.trainer.rounds.training_result import RoundRecord, TrainingResult
from rankmill.trainer.training_options import StartingModel, TrainingOptions

if TYPE_CHECKING:
    from rankmill.scorer.forest.forest import Forest

Listeners = Sequence[Callable[[RoundRecord], bool | None]]


def fit_on_cluster(
    ranker: Any,
    X: Any,  # noqa: N803 - the field's name
    y: Any,
    own: Any,
    given: Mapping[str, Any],
    metrics: Sequence[str],
    listeners: Listeners,
    start: Forest | None,
    *,
    further: bool,
) -> tuple[TrainingResult, tuple[str, ...] | None, str]:
    """Train on rows of Dask.

    Return the training, the names of the features or None, and a note on grades that have almost no influence.

    Parameters
    ----------
    ranker, own
        The ranker, and its checked options.
    given
        The arguments of :meth:`rankmill.python.ranker.Ranker.fit` besides those named here.
    metrics, listeners
        As checked.
    start
        The model to resume, if any; ``further``: it gets all rounds in addition to its own.

    Raises
    ------
    InvalidParameter
        An argument does not work on a cluster, and as ``fit``.
    TrainingDataRejected, DataRejected
        As ``fit``; or the rows are no valid dataset.
    InputError
        ``scratch`` is no folder, or a worker does not see it or has other packages.
    WorkerLost, ClusterUnavailable
        The workers were lost, or the scheduler does not answer.
    """
    scratch = own.scratch
    rows = DaskRows.of(
        X,
        y,
        {name: given.get(name) for name in (*FitColumns.__annotations__, "qid", "group")},
        "fit ",
        categorical=own.binning.categorical or (),
    )
    eval_rows = _eval_set(given, rows)
    parameters = ranker.checked_parameters(rows.features, given.get("early_stopping_rounds"))
    resume = None if start is None else StartingModel(start)
    options = TrainingOptions(eval_metrics=metrics, resume=resume)
    check_cluster(parameters.completed({}), options.base_model)  # what is given, before the rows are written
    if scratch is not None and not Path(scratch).is_dir():
        raise InputError(f"scratch: {scratch} is not a folder")
    say = to_stderr if own.verbose else None
    with (
        scratch_folder("fit", scratch) as folder,
        open_cluster(own.cluster, say or (lambda _: None)) as cluster,
    ):
        dataset = _dataset_of(rows, eval_rows, folder, cluster, own.binning, say)
        asked, parameters = parameters, with_preset(parameters, shape_of_dataset(dataset), resume)
        if start is not None and further:
            parameters = replace(parameters, n_rounds=start.n_rounds + parameters.n_rounds)
        why = "a cluster trains"
        choices = choices_line(asked, parameters, why), alone_line(asked, why)
        with verbosely(own.verbose, parameters, *choices) as progress:

            def listen(record: RoundRecord) -> None:
                progress.update(record)
                answers = [bool(listener(record)) for listener in listeners]
                if any(answers):
                    raise InvalidParameter(
                        "a callback cannot end a training on a cluster; set early_stopping_rounds, or raise an error "
                        "in it"
                    )

            options = replace(options, on_round=listen, on_message=say)
            key = training_key(dataset, parameters, options.eval_metrics)
            result = train_on_cluster(dataset, parameters, options, None, cluster, key)
        note = note_on_gains((count.grade for count in dataset.manifest.grades), parameters.gain)
    return result, rows.given_names, note


def refuse_on_cluster(ranker: Any, given: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for parameters and arguments of ``fit`` that never work on a cluster."""
    if ranker.checked_kind().model == NET:
        raise InvalidParameter("model net does not train on a cluster; leave out the parameter cluster")
    for name in ("objective", "delta"):
        if callable(getattr(ranker, name)):
            raise InvalidParameter(
                f"{name} as a function of your own does not work on a cluster, whose workers do not have it; leave "
                "out the parameter cluster"
            )
    if given.get("base_model") is not None:
        raise InvalidParameter(
            "base_model does not work on a cluster: its scores are needed for all documents; leave out the parameter "
            "cluster"
        )


def _eval_set(given: Mapping[str, Any], rows: DaskRows) -> DaskRows | None:
    """Return the eval set, if there is one."""
    sets = given.get("eval_set")
    if given.get("eval_group") is not None:
        raise InvalidParameter("fit takes no eval_group on a cluster; give eval_qid, or the eval set as (X, y, qid)")
    if list(given.get("eval_names") or ["valid"]) != ["valid"]:
        raise InvalidParameter("fit takes no eval_names on a cluster; the eval set is called valid")
    if sets is None:
        return None
    several = isinstance(sets, list) or (isinstance(sets, tuple) and all(isinstance(one, tuple) for one in sets))
    one, *others = sets if several else [sets]
    if others:
        raise InvalidParameter(f"fit takes one eval set on a cluster, which decides the rounds; got {len(sets)}")
    X, y, qid, group, more = unpacked(one)  # noqa: N806 - the field's name
    of_set = given.get("eval_qid")
    if qid is None and of_set is not None:
        qid = of_set[0]
    where = "eval set: "
    if unknown := [name for name in more if name not in FitColumns.__annotations__]:
        raise InvalidParameter.unknown(f"{where}column", unknown[0], FitColumns.__annotations__)
    found = DaskRows.of(X, y, {**more, "qid": qid, "group": group}, where, expected=rows)
    if missing := [role for role in rows.columns if role not in found.columns]:
        raise TrainingDataRejected(f"{where}lacks {missing[0]}, which the training rows have")
    if (names_in(X.columns) is None) != (rows.given_names is None):
        raise TrainingDataRejected(
            f"{where}its columns and those of the training rows must both have names, or neither"
        )
    return found


def _dataset_of(
    rows: DaskRows,
    eval_rows: DaskRows | None,
    folder: Path,
    cluster: Cluster,
    binning: BinningOptions,
    say: Callable[[str], None] | None,
) -> Dataset:
    """Make a binned dataset in ``folder``."""
    engine, files = cluster.engine, {}
    for split, part in {"train": rows, "valid": eval_rows}.items():
        if part is not None:
            (folder / split).mkdir()
            files[split] = part.write(engine, folder / split)
    read = ReadOptions(
        columns={role: role for role in rows.columns},
        known_features=frozenset(rows.features),
        categorical=rows.categorical,
        goals=rows.goals,
    )
    path = folder / "dataset"
    ingest(
        files["train"], path, valid=files.get("valid", ()), options=IngestOptions(read=read), cluster=cluster, say=say
    )
    bin_dataset(
        Dataset.open(path),
        binning.max_bin,
        max_bin_of=binning.max_bin_of,
        cluster=cluster,
        say=say or (lambda _: None),
    )
    return Dataset.open(path)
