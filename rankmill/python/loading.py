"""Load models by name or file, and register them."""

from __future__ import annotations

import os

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.url_arguments import takes_urls
from rankmill.python.model_files import facts_of, named_model
from rankmill.python.ranker import Ranker
from rankmill.registry.model_registry import Registry, Version
from rankmill.scorer.models.model import Model


@takes_urls
def load_model(model: str | os.PathLike[str], *, registry: str | os.PathLike[str] | None = None) -> Ranker:
    """Load a model by name or file, and return it as a ranker that can predict.

    Parameters
    ----------
    model
        A model file, or a model of the registry: ``web`` (its production version), ``web@7``, ``web@latest``,
        ``web@ALIAS``.  A string is a file if the file exists, if it is a URL, ends in ``.rankmill`` or contains a path
        separator; a ``Path`` is always a file.
    registry
        Folder of the registry; None: RANKMILL_REGISTRY, else ``registry-data`` in the working directory.

    Returns
    -------
    Ranker
        A ranker around the model, whose kind is that of ``model_``, with the training parameters that the model has
        recorded, without the history of the training.

    Raises
    ------
    rankmill.foundation.errors.InputError, rankmill.foundation.errors.ModelFormatError
        The file does not exist, or is not a valid model.
    rankmill.foundation.errors.RankmillError
        The registry, model, version or alias does not exist, or the file is damaged.
    """
    return Ranker.from_model(*named_model(model, registry))


def register_model(
    model: Ranker | Model, name: str, *, registry: str | os.PathLike[str] | None = None, reason: str = ""
) -> Version:
    """Register ``model`` as the next version of ``name`` and return the version; create the registry if necessary.

    If the same model is registered already, its version is returned.  ``registry`` is as for :func:`load_model`;
    ``reason`` is one line for the log.

    Raises
    ------
    InvalidParameter
        The ranker has not been fitted.
    rankmill.foundation.errors.RankmillError
        The name is invalid, the folder is not a registry, or a concurrent writer got in first.
    """
    if not isinstance(model, Ranker | Model):
        raise InvalidParameter(
            f"register_model takes a ranker or a model, got a {type(model).__name__}; a file is registered by "
            "rankmill models register"
        )
    trained = model if isinstance(model, Model) else model.fitted("register_model")
    return Registry(registry).register(
        name, trained.to_bytes(), manifest=as_json(facts_of(trained, None, None)), reason=reason
    )
