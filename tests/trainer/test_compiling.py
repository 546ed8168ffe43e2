"""The one line about compilation comes when it is true, and once."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.refusals import unnamed

SAID = """
import numpy as np
from numba import njit
from rankmill.foundation.kernels.compiling import compilation_announced
from rankmill.trainer.growing import _partition_kernels
from rankmill.trainer.objectives.pointwise import _kernels as others

said = []
with compilation_announced(said.append):
    njit(lambda x: x + 1)(1)  # a user's own: compiled in every process, and in no time
    assert said == [], said
    rows, packed = np.arange(4, dtype=np.int32), np.zeros(4, dtype=np.int64)
    call = lambda: _partition_kernels.partition(
        np.zeros(4, dtype=np.uint8), 1, np.zeros(256, dtype=np.uint8), rows, packed, 0, 4, np.empty_like(rows), np.empty_like(packed)
    )
    call()
    call()
print(said)
"""

COMPILED = """
import sys
import numpy as np
from numba.core import event
from rankmill import Ranker

rng = np.random.default_rng(0)
X = rng.standard_normal((400, 3))
with event.install_recorder("numba:compile") as compiled:
    ranker = Ranker(n_threads=1, **eval(sys.argv[1])).fit(X, (X[:, 0] > 0) * 1.0, qid=np.repeat(range(20), 20))
    ranker.predict(X)
for _, record in compiled.buffer:
    if record.is_start:
        kernel = record.data["dispatcher"].py_func
        print(kernel.__module__.rpartition(".")[2], kernel.__name__)
"""


def said(cache, *, program=SAID, argument=""):
    done = subprocess.run(
        [sys.executable, "-c", program, argument], check=True, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
def test_compiling_once_is_said_where_it_is_true(tmp_path):
    first = said(tmp_path)
    assert not unnamed(first, "compiling", "once", "half a minute", "or longer")
    assert len(first.splitlines()) == 1
    assert said(tmp_path) == "[]\n"
    for code in tmp_path.rglob("_partition_kernels.partition.*.nbc"):  # as if its source had changed
        code.rename(code.with_name("_partition_kernels.other.nbc"))
    assert said(tmp_path) == "['compiling kernels that were not needed here before; they are kept']\n"


@pytest.mark.slow
def test_the_default_blend_compiles_what_its_net_needs_alone(tmp_path):
    names = [line.split()[1] for line in said(tmp_path, program=COMPILED, argument="{}").splitlines()]
    assert {"dense", "rectified", "lambdas", "grow_by_level", "write_numbers"} <= {*names}
    of_others = {"squashed", "add_noise", "logarithms", "transformed", "sgd", "write_embeddings", "grow_by_node"}
    assert not of_others & {*names}
    assert [names.count(name) for name in ("dense", "write_numbers", "scores_of")] == [1, 1, 1]  # one kind of arrays


@pytest.mark.slow
@pytest.mark.parametrize("options", ["{}", "{'objective': 'lambdamart', 'grow': 'best_first'}"])
def test_a_plain_training_compiles_nothing_that_only_options_need(tmp_path, options):
    plain = f"{{'n_rounds': 2, 'min_rows_in_leaf': 5, **{options}}}"
    compiled = said(tmp_path, program=COMPILED, argument=plain).splitlines()
    names = {line.split()[1] for line in compiled}
    assert {"count_share", "expected_dcg"} <= names
    assert len({"gains_of", "try_feature"} & names) == 1  # one way to search
    assert not {
        line for line in compiled if line.startswith(("_category_kernels", "_pair_search_kernels", "_batch_kernels"))
    }
    assert (
        not {"gains_bounded", "_keep_smallest", "keep_drawn_split", "normal", "expected_err", "ordered_pairs"} & names
    )
    assert len(compiled) < 160
