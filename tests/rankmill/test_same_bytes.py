"""From files to the model and its rankings: the same bytes, whatever the threads, the blocks and the order of the
files."""

import itertools
import json
import os
import subprocess
import sys
import textwrap

import pytest

from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Three files whose rows belong together by query only: every query is in each of them."""
    folder = tmp_path_factory.mktemp("parts")
    write_synthetic(folder / "all.txt", SynthParameters(queries=120, documents_per_query=15, features=14))
    lines = (folder / "all.txt").read_text().splitlines(keepends=True)
    for number in range(3):
        (folder / f"part{number}.txt").write_text("".join(lines[number::3]))
    return sorted(folder.glob("part*.txt"))


def test_the_model_depends_on_the_data_alone(parts, tmp_path, typed, monkeypatch):
    for name in ("team.LEAST_CELLS", "growing.grower._LEAST_ROWS", "growing.grower._LEAST_VISITS", "growing.grower._SHARED_ROWS",
                 "objectives.pairwise.pair_loss._LEAST_WORK", "rounds.round_metrics._LEAST_SWEPT",
                 "rounds.round_metrics._LEAST_LINKED", "rounds.round_metrics._LEAST_RANKED"):  # fmt: skip
        monkeypatch.setattr(f"rankmill.trainer.{name}", 1)  # let small work be shared out as well
    monkeypatch.chdir(tmp_path)
    digests = set()
    orders = list(itertools.permutations(parts))
    cases = zip((1, 3, 2), (orders[0], orders[5], orders[2]), ("16MiB", "2KiB", "64KiB"), strict=True)
    for number, (threads, order, block) in enumerate(cases):
        files, at = " ".join(map(str, order)), f"--registry r{number} --n-threads {threads}"
        typed(f"data ingest {files} -o d{number} --split train=0.8,valid=0.2 --block-size {block}")
        typed(f"data bin d{number}")
        model = typed.json(f"train d{number} --name web --n-rounds 6 --max-leaves 8 {at}")
        typed(f"rerank {parts[0]} --model web@1 -o ranked{number}.parquet {at}")
        digests.add((model["sha256"], file_digest(tmp_path / f"ranked{number}.parquet")))
    assert len(digests) == 1


@pytest.mark.slow  # compiles every kernel again
def test_another_cpu_and_plain_libraries_give_the_same_bytes(parts, tmp_path):
    """Vector and fused instructions of the C library, NumPy and Numba switched off, bins from the mapped cache."""
    commands = """
        data ingest {parts} -o {here}/dataset --split train=0.8,valid=0.2
        data bin {here}/dataset
        train {here}/dataset --name web --registry {here}/registry --n-rounds 15 --max-leaves 8 {options}
        train {here}/dataset --name l2 --registry {here}/registry --n-rounds 15 --objective l2 --grow oblivious {options}
        rerank {parts} --model web@1 --registry {here}/registry -o {here}/ranked.parquet
    """
    features = json.loads(
        run_python("""
        import json
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
        print(json.dumps([name for name in __cpu_dispatch__ if __cpu_features__[name]]))
    """)
    )
    plain = {
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-FMA,-FMA4",
        "NPY_DISABLE_CPU_FEATURES": " ".join(features),
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
    }
    digests = []
    for name, environment, options in (("own", {}, ""), ("plain", plain, "--n-threads 2")):
        here = tmp_path / name
        here.mkdir()
        lines = commands.format(parts=" ".join(map(str, parts)), here=here, options=options).strip().splitlines()
        run_python(
            # let small work be shared out as well
            "from rankmill.trainer.growing import grower\ngrower._LEAST_VISITS = 1\n"
            "from rankmill.trainer import team\nteam.LEAST_CELLS = 1\n"
            f"from rankmill.cli import execute\nfor line in {lines!r}:\n    assert execute(line.split()) == 0, line",
            environment,
        )
        blobs = sorted({path.name for path in (here / "registry" / "blobs").rglob("*") if path.is_file()})
        digests.append((blobs, file_digest(here / "ranked.parquet")))
    assert len(digests[0][0]) == 6  # two models, what is said of each, their queries, the libraries
    assert digests[0] == digests[1]


def run_python(code, environment=None):
    """Run ``code`` in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
