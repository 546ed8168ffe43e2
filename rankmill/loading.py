"""Models by name or file, as the commands find them, and into the registry."""

from __future__ import annotations

import os

from rankmill.foundation.records import as_json
from rankmill.model_files import facts_of, load_forest
from rankmill.ranker import Ranker
from rankmill.registry.model_registry import Registry, Version
from rankmill.scorer.forest import Forest


def load_model(model: str | os.PathLike[str], *, registry: str | os.PathLike[str] | None = None) -> Ranker:
    """Return the ranker that ``model`` means, ready to predict.

    Parameters
    ----------
    model
        A model file, or a model of the registry: ``web`` (its production version), ``web@7``, ``web@latest``, ``web@ALIAS``.  A text is
        a file if there is one, or if it ends in ``.rankmill`` or has a separator of folders in it; a ``Path`` always is.
    registry
        Folder of the registry; None: what RANKMILL_REGISTRY names, else ``registry-data`` here.

    Returns
    -------
    Ranker
        With the parameters of its training, as far as the model has them, and without its history.

    Raises
    ------
    rankmill.foundation.errors.InputError, rankmill.foundation.errors.ModelFormatError
        There is no such file, or it is no sound model.
    rankmill.foundation.errors.RankmillError
        There is no such registry, model, version or alias; or its bytes are damaged.
    """
    forest, name = load_forest(model, registry)
    return Ranker.from_forest(forest, name)


def register_model(
    model: Ranker | Forest, name: str, *, registry: str | os.PathLike[str] | None = None, reason: str = ""
) -> Version:
    """Keep ``model`` as the next version of ``name`` in the registry, which is made if need be; return the version.

    The same model again is the version that is there.  ``registry`` is as for :func:`load_model`; ``reason`` is one line for the log.

    Raises
    ------
    InvalidParameter
        The ranker has not been fitted.
    rankmill.foundation.errors.RankmillError
        The name breaks the rules, the folder holds something else, or another writer was faster.
    """
    forest = model if isinstance(model, Forest) else model.fitted("register_model")
    return Registry(registry).register(
        name, forest.to_bytes(), manifest=as_json(facts_of(forest, None, None)), reason=reason
    )
