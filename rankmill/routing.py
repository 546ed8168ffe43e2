"""Which arguments scikit-learn may hand on to a ranker, by its protocol of metadata routing; scikit-learn is asked only if it asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from rankmill.foundation.errors import InvalidParameter

METHODS = ("fit", "score")
_BY_PLACE = ("group", "pairs", "pair_weight", "pair_probability")  # of all rows; those of a fold would be others
_GROUPS = "qid"  # asked for without being told to: there is no ranking without it

R = TypeVar("R", bound="Routed")


def keywords_of(function: Callable[..., object]) -> list[str]:
    """Return the names of the arguments that ``function`` takes by name alone."""
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


class Routed:
    """An estimator whose ``fit`` and ``score`` take more than X and y: the query of each row at least."""

    def get_metadata_routing(self) -> Any:
        """Return what ``fit`` and ``score`` ask for, as scikit-learn's MetadataRequest: the query ids, and what was set."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return self._metadata_request
        requests = MetadataRequest(owner=self)
        for method in METHODS:
            for name in self._routable(method):
                getattr(requests, method).add_request(param=name, alias=True if name == _GROUPS else None)
        return requests

    def set_fit_request(self: R, **requests: bool | str | None) -> R:
        """Say which arguments scikit-learn hands on to ``fit``, such as ``sample_weight=True``; ``qid`` is, unless told otherwise.

        Raises
        ------
        InvalidParameter
            ``fit`` has no such argument, or one that cannot be cut into folds, or metadata routing is off in scikit-learn.
        """
        return self._request("fit", requests)

    def set_score_request(self: R, **requests: bool | str | None) -> R:
        """Say which arguments scikit-learn hands on to ``score``; as :meth:`set_fit_request`."""
        return self._request("score", requests)

    def _routable(self, method: str) -> list[str]:
        return [name for name in keywords_of(getattr(type(self), method)) if name not in _BY_PLACE]

    def _request(self: R, method: str, requests: dict[str, bool | str | None]) -> R:
        from sklearn import get_config

        if not get_config()["enable_metadata_routing"]:
            raise InvalidParameter(
                f"set_{method}_request needs sklearn.set_config(enable_metadata_routing=True), without which nothing is routed"
            )
        known, routing = self._routable(method), self.get_metadata_routing()
        for name, asked in requests.items():
            if name in _BY_PLACE:
                raise InvalidParameter(
                    f"{name} names rows by their places and cannot be cut into folds; route qid instead"
                )
            if name not in known:
                raise InvalidParameter(f"{method} takes no {name!r}; known: {', '.join(known)}")
            getattr(routing, method).add_request(param=name, alias=asked)
        self._metadata_request = routing
        return self
