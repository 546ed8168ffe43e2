"""The sketch of queries trained on, against sets of their ids."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DatasetFormatError
from rankmill.pipeline.grouping import sketch as module
from rankmill.pipeline.grouping.query_splits import hash_ids
from rankmill.pipeline.grouping.sketch import MAGIC, MOST_HASHES, SALT, Overlap, QuerySketch, overlap
from tests.refusals import refused

IDS = st.lists(st.text(max_size=6), max_size=40)


def naive_hashes(ids: list[str]) -> list[int]:
    return sorted({int(hash_ids(pa.array([each], pa.string()), SALT)[0]) for each in ids})


@settings(deadline=None)
@given(trained=IDS, asked=IDS)
def test_small_sets_are_counted_exactly(trained: list[str], asked: list[str]) -> None:
    sketch = QuerySketch.of([trained])
    assert sketch.queries == len(set(trained))
    assert sketch.hashes.tolist() == naive_hashes(trained)
    shared = len(set(trained) & set(asked))
    assert overlap(sketch, asked) == Overlap(found=shared, looked_at=len(set(asked)), queries=len(set(asked)))
    assert overlap(sketch, asked).exact
    assert overlap(sketch, asked).estimate == shared


@settings(deadline=None)
@given(trained=IDS, asked=IDS, most=st.integers(1, 50), cut=st.integers(0, 40))
def test_cut_sketches_look_at_what_they_can_tell(trained: list[str], asked: list[str], most: int, cut: int) -> None:
    trained = sorted(set(trained))
    sketch = QuerySketch.of([trained[:cut], trained[cut:]], most)
    assert sketch.queries == len(trained)
    assert sketch.hashes.tolist() == naive_hashes(trained)[:most]
    assert sketch.exact == (len(trained) <= most)
    found = overlap(sketch, pa.array(asked, pa.string()))
    last = math.inf if sketch.exact else naive_hashes(trained)[most - 1]
    looked_at = {h for h in naive_hashes(asked) if h <= last}
    assert found == Overlap(len(set(asked)), len(looked_at), len(looked_at & set(naive_hashes(trained))))
    assert found.found <= len(set(trained) & set(asked))


@settings(deadline=None)
@given(one=IDS, other=IDS, parts=st.integers(1, 5), seed=st.integers(0, 99))
def test_bytes_depend_on_the_set_alone(one: list[str], other: list[str], parts: int, seed: int) -> None:
    ids = sorted({*one, *other})
    shuffled = np.random.default_rng(seed).permutation(np.array([*ids, *ids], dtype=object)).tolist()
    whole = QuerySketch.of([ids])
    assert QuerySketch.of([shuffled[i::parts] for i in range(parts)]).to_bytes() == whole.to_bytes()
    assert QuerySketch.of([one]).union(QuerySketch.of([other])).to_bytes() == whole.to_bytes()
    again = QuerySketch.from_bytes(whole.to_bytes())
    assert again.to_bytes() == whole.to_bytes()
    assert (again.queries, again.exact) == (len(ids), True)


def test_a_union_with_a_cut_sketch_is_cut_where_both_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HASHES", 100)
    many, few = [f"m{i}" for i in range(900)], [f"f{i}" for i in range(60)]
    cut = QuerySketch.of([many], 100)
    for both in (cut.union(QuerySketch.of([few])), QuerySketch.of([few]).union(cut)):
        assert both.hashes.tolist() == naive_hashes(many + few)[:100]
        assert not both.exact
        assert 900 <= both.queries <= 960
        found = overlap(both, few)
        assert found.found == found.looked_at < 60


def test_a_sample_of_many_queries_says_how_many_are_shared() -> None:
    trained = pa.array([f"q{i}" for i in range(100_000)])
    sketch = QuerySketch.of([trained])
    assert (sketch.queries, len(sketch.hashes), sketch.exact) == (100_000, MOST_HASHES, False)
    assert len(sketch.to_bytes()) == 16 + 8 * MOST_HASHES
    asked = [f"q{i}" for i in range(0, 100_000, 10)] + [f"x{i}" for i in range(30_000)]
    found = overlap(sketch, asked)
    assert abs(found.looked_at - 40_000 * MOST_HASHES / 100_000) < 5 * math.sqrt(40_000 * 0.25)
    assert abs(found.estimate - 10_000) < 5 * 40_000 * math.sqrt(0.25 * 0.75 / found.looked_at)
    assert overlap(sketch, [f"x{i}" for i in range(30_000)]).found == 0
    assert math.isnan(overlap(sketch, [next(i for i in asked if overlap(sketch, [i]).looked_at == 0)]).estimate)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RMQUERY0" + bytes(8),
        MAGIC + bytes(7),
        MAGIC + (3).to_bytes(8, "little"),
        MAGIC + (1).to_bytes(8, "little") + bytes(16),
        MAGIC + (2).to_bytes(8, "little") + bytes(16),
        MAGIC + (1).to_bytes(8, "little") + bytes(9),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with refused(DatasetFormatError, "sketch"):
        QuerySketch.from_bytes(data)
