"""RankLib's LambdaMART ensemble in XML, written; RankLib and the LTR plugins of Elasticsearch and OpenSearch read it.

RankLib compares float32 ``x <= threshold``, left if so, takes a missing value for 0, and adds float32 leaves into a
float32 sum, tree after tree (`ciir.umass.edu.learning.tree.Split`, `Ensemble`, codelibs/ranklib e43f605).  Features are
numbered from 1, as in LETOR text.  The first line names the ranker; lines that begin with ## are left out of the XML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from rankmill.scorer.exchange.categories import need_no_categories
from rankmill.scorer.exchange.conversion import (
    ConvertedModel,
    PlainTree,
    float32_exactness,
    float32_sums,
    java,
    need_missing_as_zero,
    need_one_output,
    shortest32,
    with_base,
)
from rankmill.scorer.forest import Forest

TARGET = "RankLib"


def write(forest: Forest, name: str) -> ConvertedModel:  # noqa: ARG001 (every format is written by the same call)
    """Return ``forest`` as an ensemble.

    Raises
    ------
    ConversionRefused
        It has several outputs, categorical splits, scores that float32 cannot hold, or sends missing values elsewhere than 0.
    """
    need_one_output(forest, TARGET)
    need_no_categories(forest, TARGET)
    need_missing_as_zero(forest, TARGET)
    exactness = float32_exactness(forest, TARGET)
    trees = list(with_base(forest))
    leaves = max(int(np.count_nonzero(~tree.inner)) for tree in trees)
    lines = ["## LambdaMART", f"## No. of trees = {len(trees)}", f"## No. of leaves = {leaves}", "", "<ensemble>"]
    for number, tree in enumerate(trees, start=1):
        lines += [f'<tree id="{number}" weight="1.0">', "<split>", *_nodes(tree), "</split>", "</tree>"]
    text = "\n".join([*lines, "</ensemble>", ""])
    return ConvertedModel(
        data=text.encode(), exactness=exactness, bound=float32_sums(forest), notes=tuple(_notes(forest))
    )


def _notes(forest: Forest) -> Iterator[str]:
    # LETOR text names features by number; the numbers agree as long as none is left out.
    numbered = [re.fullmatch(r"\D*(\d+)", feature) for feature in forest.feature_names]
    if not all(found and int(found[1]) == i for i, found in enumerate(numbered, start=1)):
        yield "RankLib knows features by number: 1 is the first feature of the model, and so on (rankmill models show lists them)"


def _nodes(tree: PlainTree) -> Iterator[str]:
    """Yield the lines inside the outermost <split>, without recursion: trees can be deep."""
    cuts, values = shortest32(tree.cut), shortest32(tree.value)
    feature, left, right = tree.feature.tolist(), tree.left.tolist(), tree.right.tolist()
    todo: list[tuple[int, str]] = [(0, "")]
    while todo:
        node, line = todo.pop()
        if line:
            yield line
            continue
        if feature[node] < 0:
            yield f"<output> {values[node]} </output>"
            continue
        yield f"<feature> {feature[node] + 1} </feature>"
        yield f"<threshold> {java(cuts[node])} </threshold>"
        todo += [
            (0, "</split>"),
            (right[node], ""),
            (0, '<split pos="right">'),
            (0, "</split>"),
            (left[node], ""),
            (0, '<split pos="left">'),
        ]
