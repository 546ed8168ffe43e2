"""The one line about compilation comes when it is true, and once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.refusals import unnamed

ROOT = Path(__file__).parents[2]

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


def said(cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SAID],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
    )
    return done.stdout


def test_compiling_once_is_said_where_it_is_true(tmp_path: Path) -> None:
    first = said(tmp_path)
    assert not unnamed(first, "compiling", "once", "half a minute", "or longer")
    assert len(first.splitlines()) == 1
    assert said(tmp_path) == "[]\n"
    for code in tmp_path.rglob("_partition_kernels.partition.*.nbc"):  # as if its source had changed
        code.rename(code.with_name("_partition_kernels.other.nbc"))
    assert said(tmp_path) == "['compiling kernels that were not needed here before; they are kept']\n"
