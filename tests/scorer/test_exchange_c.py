"""The C source: compiled without a warning by gcc, it makes our bits."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from rankmill.scorer.exchange import c as exchange
from rankmill.scorer.predict import predict
from tests.scorer.exchange_cases import NUMBERS, awkward_forest, numbered, rows_for
from tests.scorer.forests import TEXTS, random_forest

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-O1", "-shared", "-fPIC")


def compiled(forest, folder, name="web"):
    """The library made of a forest's source."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = folder / "model.c"
    source.write_bytes(exchange.write(forest, name).data)
    library = folder / f"{source.stem}-{abs(hash(forest))}.so"
    done = subprocess.run(
        [compiler, *STRICT, "-o", library, source, "-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = ctypes.CDLL(str(library))
    found.rankmill_score.restype = ctypes.c_double
    return found


def scores(library, rows):
    rows = np.ascontiguousarray(rows)
    return np.array([library.rankmill_score(row.ctypes.data_as(ctypes.c_void_p)) for row in rows])


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_source_gives_the_same_bits(seed, tmp_path):
    forest = awkward_forest(seed, n_trees=[12, 0, 1, 30, 3, 8][seed], max_leaves=30)
    if seed == 3:  # +inf parts what is there from what is missing
        cuts = forest.cuts.copy()
        cuts[forest.cut_starts[1:] - 1] = np.inf
        cuts[forest.cut_starts[0]] = -np.inf
        forest = replace(forest, cuts=cuts)
    rows = rows_for(forest, seed)
    assert np.array_equal(scores(compiled(forest, tmp_path), rows), predict(forest, rows))


@pytest.mark.parametrize("texts", [TEXTS, NUMBERS])
def test_sets_of_categories_are_compiled_in(texts, tmp_path):
    forest = awkward_forest(7, n_trees=20, max_leaves=30, categorical=3, texts=texts)
    library = compiled(forest, tmp_path)
    rows = rows_for(forest, 7)
    assert np.array_equal(scores(library, numbered(forest, rows, 1)), predict(forest, rows))
    if texts is TEXTS:
        held = (ctypes.c_char_p * len(texts)).in_dll(library, "rankmill_categories_0")
        assert [text.decode() for text in held] == sorted(texts)
    else:  # fractions belong to no category
        assert np.array_equal(scores(library, rows), predict(forest, rows))


@pytest.mark.parametrize(
    ("link", "n_outputs"), [("softmax_grade", 3), ("softmax_gain", 5), ("ordinal_grade", 1), ("ordinal_gain", 4)]
)
def test_links_stay_within_the_bound(link, n_outputs, tmp_path):
    forest = awkward_forest(n_outputs, n_trees=4 * n_outputs, link=link, n_outputs=n_outputs)
    rows = rows_for(forest, 1)
    there = scores(compiled(forest, tmp_path), rows)
    assert np.max(np.abs(there - predict(forest, rows))) <= exchange.write(forest, "web").bound
    far = replace(forest, node_value=forest.node_value * 1e3)  # probabilities of 0 and 1
    assert (
        np.max(np.abs(scores(compiled(far, tmp_path), rows) - predict(far, rows))) <= exchange.write(far, "web").bound
    )


def test_names_of_any_kind_are_kept_and_close_no_comment(tmp_path):
    names = ['a"b', "c\\n", "??=*/", "größe", "e f"]
    forest = random_forest(2, names=names)
    library = compiled(forest, tmp_path, name="*/ int x; /* ??/")
    assert ctypes.c_int.in_dll(library, "rankmill_n_features").value == 5
    held = (ctypes.c_char_p * 5).in_dll(library, "rankmill_feature_names")
    assert [name.decode() for name in held] == names


def test_a_file_needs_the_mathematical_library_only_where_it_says_so():
    plain, linked = random_forest(0), random_forest(0, link="ordinal_grade", n_outputs=2)
    assert b"exp(" not in exchange.write(plain, "web").data
    assert not exchange.write(plain, "web").notes
    assert any("-lm" in note for note in exchange.write(linked, "web").notes)
