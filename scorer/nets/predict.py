"""A net laid out for prediction: see `rankmill.scorer.models.model.Predictor`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankmill.scorer.models.model import Predictor
from rankmill.scorer.nets.net import Net

PRODUCTS_AT_ONCE = 8  # of a vector instruction: so many cost about as much as a comparison


class NetPredictor(Predictor):
    """A net over the columns of its own features, which are gathered from any table."""

    def __init__(self, net: Net) -> None:
        self.model = net
        self.features = net.used_features
        slot = np.zeros(net.n_features, dtype=np.int32)
        slot[list(self.features)] = np.arange(len(self.features), dtype=np.int32)
        inputs = net.inputs
        places = {name: slot[getattr(inputs, name)] for name in ("numeric", "indicators", "categorical")}
        names = self.feature_names
        self._net = replace(
            net,
            feature_names=names,
            inputs=replace(inputs, **places),
            categories={name: texts for name, texts in net.categories.items() if name in names},
        )

    @property
    def comparisons(self) -> int:
        """Weights that a document is multiplied with, over those that a vector instruction takes at once."""
        embedded = self._net.inputs.embeddings.size
        return -(-(self._net.n_weights - embedded) // PRODUCTS_AT_ONCE)

    def scores(
        self,
        values: npt.NDArray[np.float32],
        *,
        columns: npt.ArrayLike | None = None,
        absent: float = np.nan,
        n_threads: int = 1,
    ) -> npt.NDArray[np.float64]:
        """Score the rows of ``values``, as `Predictor.scores` says."""
        table, where = self._table(values), self._columns(values, columns)
        own = np.empty((len(table), len(where)), dtype=np.float32)
        with np.errstate(over="ignore"):  # a float64 beyond float32's range becomes infinite
            for slot, column in enumerate(where.tolist()):
                own[:, slot] = np.float32(absent) if column < 0 else table[:, column]
        return self._net.predict(own, n_threads)

    @property
    def code_bytes(self) -> int:
        """Bytes per row of `codes_buffer`."""
        return 4 * len(self.features)

    def codes_buffer(self, n_rows: int) -> npt.NDArray[np.float32]:
        """Return a buffer for the values of ``n_rows``."""
        return np.empty((n_rows, len(self.features)), dtype=np.float32)

    def take_column(
        self, codes: npt.NDArray[np.float32], slot: int, first: int, values: npt.NDArray[np.float32]
    ) -> None:
        """Write some values of one feature to ``codes``, as `Predictor.take_column` says."""
        if not 0 <= slot < codes.shape[1] or not 0 <= first <= first + len(values) <= len(codes):
            raise ValueError(f"no room for {len(values)} values of feature {slot} from row {first} on")
        codes[first : first + len(values), slot] = values

    def scores_of_codes(self, codes: npt.NDArray[np.float32], n_rows: int) -> npt.NDArray[np.float64]:
        """Return the (``n_rows``,) scores, once ``codes`` has the values of all features."""
        return self._net.predict(codes[:n_rows])
