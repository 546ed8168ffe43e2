"""Categories in the formats of other tools, which number them.

Whole numbers stay as they are; texts are counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused
from rankmill.pipeline.bins.categories import LARGEST_WHOLE, category_code, category_codes, code_name
from rankmill.scorer.exchange.conversion import PlainTree
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.models.model_file import shortened


@dataclass(frozen=True, slots=True)
class CategoryNumbers:
    """The numbers by which other tools know the categories of a feature, of which a model knows the codes."""

    texts: tuple[str, ...]
    """The text of the categories 0, 1, .., sorted; empty if each code is its own number."""
    numbers: Mapping[float, int]
    """The number of each category that the model knows, by its code."""

    def of(self, codes: npt.NDArray[np.float32]) -> list[int]:
        """Return the numbers of ``codes``, ascending."""
        return sorted(self.numbers[code] for code in codes.tolist())


def category_numbers(forest: Forest) -> dict[int, CategoryNumbers]:
    """Return how to write the categories of each categorical feature, by its position.

    Codes that are all whole numbers from 0 on stay as they are.  Otherwise the texts are sorted and counted from 0.
    """
    found = {}
    for f in forest.categorical_features:
        codes = forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]].tolist()
        if all(0 <= code <= LARGEST_WHOLE and code.is_integer() for code in codes):
            found[f] = CategoryNumbers((), {code: int(code) for code in codes})
            continue
        names = {category_code(text): text for text in forest.categories[forest.feature_names[f]]}
        texts = {code: code_name(code, names) for code in codes}
        order = sorted(codes, key=texts.__getitem__)
        found[f] = CategoryNumbers(tuple(texts[code] for code in order), {code: i for i, code in enumerate(order)})
    return found


def text_notes(forest: Forest) -> Iterator[str]:
    """Yield how the categories are given to the other tool."""
    numbered = {forest.feature_names[f] for f, known in category_numbers(forest).items() if known.texts}
    if numbered:
        yield (
            f"the categories of {', '.join(sorted(numbered))} are numbers there: 0, 1, .. in the sorted order of "
            "their texts"
        )


def have_numbers(forest: Forest) -> bool:
    """Return whether the categories of a feature are numbers themselves, and not texts with numbers of their own."""
    return any(not known.texts for known in category_numbers(forest).values())


def need_no_categories(forest: Forest, target: str) -> None:
    """Refuse a forest that splits by sets of categories."""
    if np.any(forest.splits_by_set):
        name = forest.feature_names[forest.node_feature[np.flatnonzero(forest.splits_by_set)[0]]]
        raise ConversionRefused(
            f"{target} has only splits by thresholds, but this model splits {name!r} by sets of categories; convert "
            "it --to lightgbm, xgboost or onnx, or train without categorical features"
        )


def with_codes(
    trees: Sequence[PlainTree], names: Sequence[str], texts: Mapping[int, Sequence[str]], where: str
) -> tuple[list[PlainTree], dict[str, list[str]]]:
    """Return ``trees`` with codes instead of another tool's numbers in sets.

    Also return the texts of each categorical feature.

    ``texts`` are those of the categories 0, 1, .. of a feature; numbers beyond them are left out.  The categories of
    other features are the numbers themselves.

    Raises
    ------
    ConversionRefused
        Two texts of a feature have the same code.
    """
    known = {f: list(own) for f, own in texts.items() if f < len(names)}
    codes = {f: category_codes(own) for f, own in known.items()}
    for f, own in codes.items():
        alike = [text for text, code in zip(known[f], own.tolist(), strict=True) if np.count_nonzero(own == code) > 1]
        if alike:
            raise ConversionRefused(
                f"{where}: the categories {shortened(alike)} of {names[f]!r} would be the same here; rename one, and "
                "train again"
            )
    done = []
    for tree in trees:
        sets = {}
        for node, numbers in tree.sets.items():
            f = int(tree.feature[node])
            if f in codes:
                sets[node] = codes[f][numbers[numbers < len(codes[f])]]
            else:
                sets[node] = category_codes(map(str, numbers.tolist()))
                known.setdefault(f, []).extend(map(str, numbers.tolist()))
        done.append(replace(tree, sets=sets))
    return done, {names[f]: own for f, own in known.items() if f < len(names)}
