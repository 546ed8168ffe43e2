"""Rows as bins: what one training needs of its rows, or many trainings of a :class:`rankmill.BinnedDataset`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import option, option_like, options
from rankmill.pipeline.bins.spec import BinSpec
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import MAX_BIN, BinOptions
from rankmill.python.arrays import Matrix, name_of_column
from rankmill.python.given_rows import Expected, GivenRows
from rankmill.seen_queries import DigestedQueries
from rankmill.trainer.candidates.combined_forests import BaseModel
from rankmill.trainer.candidates.train_on_dataset import facts_of_data
from rankmill.trainer.data.rows import RankedRows, TrainingData, as_eval_set
from rankmill.trainer.data.training_rows import categories_of, read_rows
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.options import MachineOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import workers_for


def _columns(given: Any) -> tuple[str | int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidParameter(f"categorical must be a list of names or positions of columns, got {given!r}")
    return tuple(given)


@options
class BinningOptions:
    """How features become bins."""

    max_bin: int = option_like(BinOptions, "max_bin", default=MAX_BIN)
    max_bin_of: Mapping[str, int] | None = option_like(
        BinOptions,
        "max_bin_of",
        default=None,
        help='Another maximum, 2 to 255, for some features: {"brand": 50, "price": 63}.',
    )
    categorical: Sequence[str | int] | None = option(
        default=None,
        help="Columns with whole numbers that are categories, such as ids of shops, by name or position.  Columns of "
        "text or of a type of categories are categorical without being named.",
        convert=_columns,
        on_command_line=False,
    )
    n_threads: int = option_like(MachineOptions, "n_threads", default=0)


def check_binned_alike(own: BinningOptions, binspec: BinSpec, whose: str) -> None:
    """Raise InvalidParameter if options ask for other bins than those of ``binspec``.

    The message says ``whose`` bins they are.
    """
    names, categorical = binspec.feature_names, binspec.categories
    named = [
        name_of_column("categorical", key, names) if not isinstance(key, str) else key for key in own.categorical or ()
    ]
    alike = {
        "max_bin": own.max_bin in {MAX_BIN, binspec.max_bin},
        "max_bin_of": own.max_bin_of is None or own.max_bin_of == binspec.max_bin_of,
        "categorical": all(name in categorical for name in named),
    }
    for option_name, is_alike in alike.items():
        if not is_alike:
            given = getattr(own, option_name)
            raise InvalidParameter(f"{option_name} {given!r} is not that of {whose}, whose bins are used; leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinnedRows:
    """Rows with their bins, and what a model says of its data."""

    binspec: BinSpec
    rows: RankedRows
    max_grade: int
    info: Mapping[str, Any]
    given_names: tuple[str, ...] | None  # None: the columns have no names
    categories: Mapping[str, Sequence[str]]
    """The categorical features, with the texts of all their categories that are not numbers."""
    goal_max_grades: Mapping[str, int] = field(default_factory=dict)
    """The highest grades of goals, if they are not those of the rows."""
    queries: DigestedQueries | None = None
    """Their queries, if they are not those of a dataset."""
    source: tuple[Dataset, str] | None = None
    """The split of a dataset that they are, which has their values."""
    values: Matrix | None = None
    """(n, n_features) values, if they are kept."""

    @classmethod
    def of_given(
        cls,
        given: GivenRows | BinnedRows,
        own: BinningOptions,
        *,
        regression: bool,
        reference: BinSpec | None = None,
        base: BaseModel | None = None,
        where: str = "",
        keep: bool = False,
    ) -> BinnedRows:
        """Check and bin the ``given`` rows, unless they have bins.

        Parameters
        ----------
        regression
            Whether ``y`` may be labels; see `rankmill.python.array_rows.rows_of`.
        reference
            The bins to use; InvalidParameter if ``given`` has others.
        base
            A model whose scores are added to the offsets.
        where
            Begins messages about their queries.
        keep
            Keep the values, too, unless they are not in memory.
        """
        if isinstance(given, BinnedRows):
            if reference is not None and given.binspec.digest != reference.digest:
                raise InvalidParameter(
                    "its bins are not those of the training data; make it with BinnedDataset(.., reference=the "
                    "training data)"
                )
            return given
        rows, n_threads = given.rows(regression=regression, where=where), workers_for(own.n_threads)
        binspec = given.table.bins(own.max_bin, own.max_bin_of, n_threads) if reference is None else reference
        found = rows.ranked(binspec, n_threads)
        if base is not None:
            assert isinstance(rows.values, np.ndarray)  # noqa: S101 - given at once
            values = rows.values[:, [base.feature_names.index(name) for name in base.needed]]
            found = replace(found, offsets=base.offsets(found.offsets, [values], n_threads))
        return cls(
            binspec=binspec,
            rows=found,
            max_grade=int(found.grades.max(initial=0)),
            info={"dataset_digest": rows.digest, "binspec_digest": binspec.digest},
            given_names=given.given_names,
            categories={name: [*texts] for name, texts in given.table.texts.items()},
            queries=rows.queries,
            values=rows.values if keep and isinstance(rows.values, np.ndarray) else None,
        )

    @classmethod
    def of_dataset(cls, dataset: Dataset, split: str) -> BinnedRows:
        """Read a split of a binned dataset; TrainingDataRejected if it has no rows."""
        binspec = dataset.binspec()
        # with labels, which other objectives leave out, and with all categories
        rows = read_rows(
            dataset, split, binspec, TrainParameters(objective="l2", encode_above=1, position_bias="additive")
        )
        if not rows.n_rows:
            raise TrainingDataRejected(f"{dataset.path}: the {split} split is empty")
        return cls(
            binspec=binspec,
            rows=rows,
            max_grade=dataset.max_grade,
            info=facts_of_data(dataset, binspec.digest),
            given_names=dataset.feature_names,
            categories=categories_of(dataset, binspec),
            goal_max_grades=dataset.goals,
            source=(dataset, split),
        )

    def blocked(self) -> BinnedRows:
        """Return the same in the layout of the trainer, to be read any number of times."""
        return replace(self, rows=replace(self.rows, bins=self.rows.blocked(self.binspec.n_bins)))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return self.binspec.feature_names

    @property
    def expected(self) -> Expected:
        """The features that eval sets have."""
        return self.binspec.feature_names, self.binspec.categories

    @property
    def as_eval_set(self) -> RankedRows:
        """The rows as an eval set."""
        return as_eval_set(self.rows)

    def training_data(self, objective: str | None, eval_sets: Sequence[tuple[str, BinnedRows]] = ()) -> TrainingData:
        """Return what a training for ``objective`` learns from.

        Raises
        ------
        TrainingDataRejected
            There are labels alone, and the objective learns grades.
        """
        rows = self.rows
        if rows.labels is not None and not learns_labels(objective):
            if not rows.graded:
                raise TrainingDataRejected(
                    "y has labels, numbers other than whole ones from 0 to 31, but an objective of ranking needs grades"
                )
            rows = replace(rows, labels=None)
        return TrainingData(
            train=rows,
            eval_sets=[(name, binned.as_eval_set) for name, binned in eval_sets],
            edges=[feature.edges for feature in self.binspec.features],
            categories=self.categories,
            feature_names=self.feature_names,
            max_grade=max(self.max_grade, *(binned.max_grade for _, binned in eval_sets))
            if eval_sets
            else self.max_grade,
            goal_max_grades=self.goal_max_grades,
            info=self.info,
        )
