"""Rows with their bins, to train on many times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy.typing as npt

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.options import declared_in, defaults_of, documented, made_from, signature_of
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.python.binned_rows import BinnedRows, BinningOptions, check_binned_alike
from rankmill.python.given_rows import Expected, FitColumns, GivenRows, Pieces
from rankmill.python.other_libraries import unknown_name

_WHERE = "BinnedDataset "


class BinnedDataset:
    """Rows with their bins, a byte a value: bin once, train many times.

    ``Ranker.fit(binned)`` makes the same model as ``Ranker.fit(X, y, ..)`` and, from a dataset folder, as ``rankmill
    train``. Of the values themselves only codes of categories are kept, so a net takes only what :meth:`open` returns:
    it reads them again.

    Parameters
    ----------
    X, y, qid, group
        As :meth:`rankmill.python.ranker.Ranker.fit` takes them.  Numbers in ``y`` that are not all whole and from 0 to
        31 are labels.
    reference
        Another BinnedDataset, whose edges are used: for eval sets.

    More columns are ``sample_weight``, ``query_weight``, ``label``, ``event``, ``offset``, ``pairs`` and ``goals``, as
    ``fit`` takes them.

    Attributes
    ----------
    binned
        The bins and the other columns, a :class:`rankmill.python.binned_rows.BinnedRows`.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As ``fit``.

    Examples
    --------
    >>> import numpy as np
    >>> from rankmill import BinnedDataset, Ranker
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> binned = BinnedDataset(X, np.clip(np.round(X[:, 0] + 1), 0, 4), qid=qid)
    >>> binned
    <BinnedDataset: 30 queries, 300 rows, 3 features>
    >>> [Ranker(n_rounds=5, max_leaves=n).fit(binned).forest_.n_trees for n in (4, 8)]
    [15, 15]
    """

    binned: BinnedRows

    def __init__(
        self,
        X: Any,  # noqa: N803 - the field's name
        y: npt.ArrayLike,
        *,
        qid: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        reference: BinnedDataset | None = None,
        **more: Any,
    ) -> None:
        known = {each.name for each in declared_in(BinningOptions)}
        own = made_from(BinningOptions, {name: more.pop(name) for name in known & more.keys()})
        for name in more.keys() - FitColumns.__annotations__.keys():
            raise InvalidParameter(
                unknown_name("argument of BinnedDataset", name, [*known, *FitColumns.__annotations__])
            )
        expected = _expected(reference, own)
        given = GivenRows.of_arrays(
            X, y, qid, group, more, where=_WHERE, expected=expected, categorical=own.categorical
        )
        self.binned = _binned(given, own, reference)

    @classmethod
    def from_pieces(
        cls,
        pieces: Pieces,
        *,
        reference: BinnedDataset | None = None,
        scratch: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> BinnedDataset:
        """Bin rows that do not fit into memory; the same for pieces of any size, and as from all rows at once.

        The pieces are read once.  Their features are kept in a temporary file of 4 bytes a value. Memory holds a piece,
        the bins (a byte a value), codes of categories (4 bytes each) and their texts. It also holds about 60 bytes a
        row, and two columns for each thread.

        Parameters
        ----------
        pieces
            An iterable of pieces, or a function that returns one.  A piece is (X, y, qid), or (X, y, {'qid': ..,
            'offset': ..}) with other arguments of ``fit``, each with a value for every row; pairs cannot be given.
            Rows of a query may be in several pieces.  The first piece decides which columns are features, and which of
            them categorical.
        reference
            As in the constructor.
        scratch
            Folder of the temporary file; default: the system's, which on some systems is in memory.
        options
            ``max_bin``, ``max_bin_of``, ``categorical`` and ``n_threads``, as in the constructor.

        Raises
        ------
        InvalidParameter, TrainingDataRejected
            As the constructor, with the number of the piece; or its columns are not those of the first.
        """
        own, made = made_from(BinningOptions, options), cls.__new__(cls)
        expected = _expected(reference, own)
        if scratch is not None and not Path(scratch).is_dir():
            raise InputError(f"scratch: {scratch} is not a folder")
        with TemporaryFile(dir=scratch) as file:
            given = GivenRows.of_pieces(pieces, file, expected=expected, categorical=own.categorical)
            made.binned = _binned(given, own, reference)
        return made

    @classmethod
    def open(cls, path: str | os.PathLike[str], split: str = "train") -> BinnedDataset:
        """Read a split of the dataset at ``path``, with its newest bins.

        ``rankmill data ingest`` and ``rankmill data bin`` write it.

        Its other splits are eval sets for it.

        Raises
        ------
        InputError
            There is no dataset, or it has no bins.
        DatasetFormatError
            It is damaged.
        TrainingDataRejected
            The split has no rows.
        """
        made = cls.__new__(cls)
        made.binned = BinnedRows.of_dataset(Dataset.open(path), split).blocked()
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle stores: the bins, without the dataset that they are of."""
        return {"binned": replace(self.binned, source=None)}

    def __repr__(self) -> str:
        rows = self.binned.rows
        features = len(self.binned.feature_names)
        return f"<BinnedDataset: {rows.n_queries:,} queries, {rows.n_rows:,} rows, {features:,} features>"


BinnedDataset.__init__.__signature__ = signature_of(  # type: ignore[attr-defined]
    BinnedDataset.__init__, defaults_of(BinningOptions) | dict.fromkeys(FitColumns.__annotations__)
)
BinnedDataset.__init__.__doc__ = documented(BinningOptions)


def _binned(given: GivenRows, own: BinningOptions, reference: BinnedDataset | None) -> BinnedRows:
    """Check and bin the rows, to be trained on many times."""
    bins = None if reference is None else reference.binned.binspec
    return BinnedRows.of_given(given, own, regression=True, reference=bins, where=_WHERE).blocked()


def binned_or_given(
    X: Any,  # noqa: N803 - the field's name
    y: Any,
    qid: Any,
    group: Any,
    columns: Mapping[str, Any],
    own: BinningOptions,
    where: str,
) -> BinnedRows | GivenRows:
    """Return ``X`` if it is binned, which excludes the other arguments; else the rows that are given.

    Raises
    ------
    InvalidParameter
        There are other arguments, or options say how to bin.
    """
    if not isinstance(X, BinnedDataset):
        return GivenRows.of_arrays(X, y, qid, group, columns, where=where, categorical=own.categorical)
    given = [name for name, value in {"y": y, "qid": qid, "group": group, **columns}.items() if value is not None]
    if given:
        raise InvalidParameter(
            f"{where}takes no {given[0]} beside a BinnedDataset, which has it: BinnedDataset(X, y, ..)"
        )
    check_binned_alike(own, X.binned.binspec, "the BinnedDataset")
    return X.binned


def _expected(reference: BinnedDataset | None, own: BinningOptions) -> Expected | None:
    """Return the features of a reference; InvalidParameter if options say how to bin, too."""
    if reference is None:
        return None
    if not isinstance(reference, BinnedDataset):
        raise InvalidParameter(
            f"reference must be the BinnedDataset of the training data, got a {type(reference).__name__}"
        )
    check_binned_alike(own, reference.binned.binspec, "the reference")
    return reference.binned.feature_names, reference.binned.binspec.categories
