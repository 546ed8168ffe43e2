"""rankmill: learning to rank with gradient-boosted trees, from judgments to served models.

The names below are imported on first use, so that ``import rankmill`` and the command line load neither the kernels
nor a data library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.python.binned_dataset import BinnedDataset
    from rankmill.python.loading import load_model, register_model
    from rankmill.python.ranker import Ranker
    from rankmill.python.validating import cross_validate, select_features
    from rankmill.registry.model_registry import Registry
    from rankmill.scorer.evaluate.evaluate import evaluate
    from rankmill.scorer.rerank.rerank import rerank
    from rankmill.trainer.objectives.user import check_lambdas

__all__ = [
    "BinnedDataset",
    "Dataset",
    "Ranker",
    "Registry",
    "__version__",
    "check_lambdas",
    "cross_validate",
    "evaluate",
    "load_model",
    "register_model",
    "rerank",
    "select_features",
]

__version__ = "0.1.0"

_HOME = {
    "BinnedDataset": "rankmill.python.binned_dataset",
    "Dataset": "rankmill.pipeline.dataset.dataset",
    "Ranker": "rankmill.python.ranker",
    "cross_validate": "rankmill.python.validating",
    "select_features": "rankmill.python.validating",
    "load_model": "rankmill.python.loading",
    "register_model": "rankmill.python.loading",
    "Registry": "rankmill.registry.model_registry",
    "evaluate": "rankmill.scorer.evaluate.evaluate",
    "rerank": "rankmill.scorer.rerank.rerank",
    "check_lambdas": "rankmill.trainer.objectives.user",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
