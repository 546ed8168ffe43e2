"""Records: what is written is read again, old files and newer ones too, and what is wrong is said in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import as_json, from_json, left_out, not_in_json, to_line


@dataclass(frozen=True)
class Leaf:
    value: float
    rows: int = 0


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    gains: Mapping[str, float]
    name: str | None = None
    seed: int | None = left_out()


TREE = Tree((Leaf(0.1, 3), Leaf(-2.0)), {"b": 1.5, "a": 0.1 + 0.2}, seed=7)


def test_what_is_written_is_read_again() -> None:
    assert from_json(Tree, to_line(TREE), "tree") == TREE
    assert from_json(Tree, as_json(TREE), "tree") == TREE


def test_the_same_record_has_the_same_bytes_whatever_the_order_of_its_mappings() -> None:
    other = Tree(TREE.leaves, dict(reversed(list(TREE.gains.items()))), seed=7)
    assert to_line(other) == to_line(TREE)


def test_a_field_that_is_left_out_has_no_key() -> None:
    assert "seed" not in as_json(Tree((), {}))
    assert as_json(Tree((), {}))["name"] is None


@dataclass(frozen=True)
class Part:
    n_rows: int
    n_tied: int
    share: float = field(init=False)
    place: str | None = not_in_json(default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", self.n_tied / self.n_rows)


def test_what_is_not_written_has_no_key_and_what_is_computed_has_one() -> None:
    part = Part(4, 1, place="here")
    assert as_json(part) == {"n_rows": 4, "n_tied": 1, "share": 0.25}
    assert from_json(Part, to_line(part), "part") == Part(4, 1)


def test_old_files_lack_keys_and_newer_ones_have_more() -> None:
    assert from_json(Leaf, '{"value": 1.5}', "leaf") == Leaf(1.5)
    assert from_json(Leaf, '{"value": 1.5, "colour": "red"}', "leaf") == Leaf(1.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"leaves": [{"value": "1"}], "gains": {}}', "web.json: leaves.0.value: "),
        ('{"gains": {}}', "web.json: leaves: "),
        ('{"leaves": [', "web.json: "),
        ("[]", "web.json: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        from_json(Tree, text, "web.json")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_and_paths_are_plain() -> None:
    found = as_json({"a": np.float32(0.5), "b": np.arange(3), "c": Path("x/y"), "d": {2, 1}})
    assert json.dumps(found) == '{"a": 0.5, "b": [0, 1, 2], "c": "x/y", "d": [1, 2]}'


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_line(Leaf(float("nan")))
