"""Solr's MultipleAdditiveTreesModel in JSON, written.

Solr adds 1e-6 to every threshold as it reads it and compares float32 ``x <= threshold``, left if so; it adds float32
leaves into a float32 sum (`org.apache.solr.ltr.model.MultipleAdditiveTreesModel`, apache/solr).  A threshold is
therefore written so that the addition gives our cut.  Near 0, where float32 numbers are closer together than sums with
1e-6, this can be impossible.

A missing value is 0.  Since Solr 9.2 (apache/solr pull request 1257) it is missing if the parameter
``isNullSameAsZero`` is false, the feature's ``defaultValue`` is NaN and the node has a branch ``missing``.  All numbers
are written as text, as Solr requires.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused
from rankmill.foundation.options import spelled
from rankmill.scorer.exchange.categories import need_no_categories
from rankmill.scorer.exchange.conversion import (
    ConvertedModel,
    PlainTree,
    float32_exactness,
    float32_sums,
    java,
    need_one_output,
    shortest32,
    takes_missing_as_zero,
    with_base,
)
from rankmill.scorer.forest.forest import CUT, Forest

TARGET = "Solr"
SLACK = np.float32(1e-6)  # NODE_SPLIT_SLACK
NEIGHBOURS = 4  # floats to try on either side of the difference
DEEPEST = 400  # levels of JSON that every reader supports


def write(forest: Forest, name: str, *, nearest: bool = False) -> ConvertedModel:
    """Return ``forest`` as a model of this ``name``, over the features that it uses.

    If Solr cannot represent a threshold, ``nearest`` allows the nearest one that it can.

    Raises
    ------
    ConversionRefused
        It has several outputs, categorical splits, scores that float32 cannot hold, trees that are too deep, or a
        threshold that Solr cannot represent.
    """
    need_one_output(forest, TARGET)
    need_no_categories(forest, TARGET)
    exactness = float32_exactness(forest, TARGET)
    plain = takes_missing_as_zero(forest)
    cuts = np.unique(forest.cuts)
    written = before_slack(cuts)
    with np.errstate(invalid="ignore"):  # inf - inf
        off = np.where(written + SLACK == cuts, 0.0, np.abs(written.astype(np.float64) + float(SLACK) - cuts))
    if np.any(off) and not nearest:
        raise _threshold_error(forest, cuts, off)
    thresholds = dict(zip(cuts.tolist(), shortest32(written), strict=True))
    names = forest.feature_names
    trees = [{"weight": "1.0", "root": _root(tree, names, thresholds, plain=plain)} for tree in with_base(forest)]
    used = forest.used_features or range(forest.n_features)
    model = {
        "class": "org.apache.solr.ltr.model.MultipleAdditiveTreesModel",
        "name": name,
        "features": [{"name": names[f]} for f in used],
        "params": {"trees": trees} if plain else {"isNullSameAsZero": "false", "trees": trees},
    }
    notes = ["the feature store needs features of these names"]
    if np.any(off):
        notes.append(
            f"{np.count_nonzero(off)} of {len(cuts)} thresholds lie up to {off.max():.2g} beside those here: Solr "
            "cannot represent them; values this close may go to another leaf"
        )
    if not plain:
        notes.append(
            "missing values go their own ways: Solr 9.2 or newer, and defaultValue NaN for the features in the store;"
            f" with {spelled('missing')} zero any Solr can read it"
        )
    text = json.dumps(model, ensure_ascii=False, separators=(",", ":"))
    return ConvertedModel(
        data=f"{text}\n".encode(), exactness=exactness, bound=float32_sums(forest), notes=tuple(notes)
    )


def before_slack(cuts: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the float32 numbers (n,) that come nearest to ``cuts`` (n,) when 1e-6 is added in float32.

    >>> cuts = np.float32([0.0, 0.5, -3.0])
    >>> (before_slack(cuts) + np.float32(1e-6)).tolist()
    [0.0, 0.5, -3.0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = below = above = cuts - SLACK
        for _ in range(NEIGHBOURS):
            below, above = np.nextafter(below, CUT(-np.inf)), np.nextafter(above, CUT(np.inf))
            for tried in (below, above):
                closer = np.abs(tried + SLACK - cuts) < np.abs(found + SLACK - cuts)
                found = np.where(closer, tried, found)
    return found


def _threshold_error(forest: Forest, cuts: npt.NDArray[np.float32], off: npt.NDArray[np.float64]) -> ConversionRefused:
    """Return the message about the ``cuts`` that Solr cannot represent: those that are ``off``."""
    cut = cuts[np.flatnonzero(off)[0]]
    f = int(np.searchsorted(forest.cut_starts, np.flatnonzero(forest.cuts == cut)[0], side="right")) - 1
    return ConversionRefused(
        f"Solr adds 1e-6 to a threshold as it reads it, and no float32 becomes {cut} of feature "
        f"{forest.feature_names[f]!r} by that ({np.count_nonzero(off)} of {len(cuts)} thresholds are like it, "
        f"{off.max():.2g} off at most); take the nearest with {spelled('nearest_thresholds')}, or train on larger "
        "values of the feature, such as 1e6 times these"
    )


def _root(tree: PlainTree, names: tuple[str, ...], thresholds: dict[float, float], *, plain: bool) -> dict[str, object]:
    """Return the tree as nested objects, built from the leaves up."""
    tree = tree.breadth_first()  # children come after their parents
    values = shortest32(tree.value)
    depth = np.zeros(len(values), dtype=np.int64)
    for node in np.flatnonzero(tree.inner).tolist():
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    if depth.max() > DEEPEST:
        raise ConversionRefused(
            f"Solr's JSON would nest {depth.max()} levels deep, more than {DEEPEST}; train with "
            f"{spelled('max_depth')} {DEEPEST} or less"
        )
    built: list[dict[str, object]] = [{} for _ in values]
    columns = (tree.feature, tree.cut, tree.missing_left, tree.left, tree.right)
    nodes = list(zip(*(column.tolist() for column in columns), strict=True))
    for node in range(len(values) - 1, -1, -1):
        feature, cut, missing_left, left, right = nodes[node]
        if feature < 0:
            built[node] = {"value": str(values[node])}
            continue
        missing = {} if plain else {"missing": "left" if missing_left else "right"}
        built[node] = {
            "feature": names[feature],
            "threshold": java(thresholds[cut]),
            **missing,
            "left": built[left],
            "right": built[right],
        }
    return built[0]
