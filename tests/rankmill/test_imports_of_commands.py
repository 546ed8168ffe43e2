"""What each command loads: no more libraries than it uses, and without looking for garbage all the time."""

import subprocess
import sys

import pytest

from rankmill.cli import execute

HEAVY = {
    *("altair", "cffi", "dask", "duckdb", "IPython", "jinja2", "joblib", "numba", "numpy", "obstore", "pandas"),
    *("polars", "pyarrow", "pyarrow.dataset", "pydantic", "rich", "scipy", "sklearn"),
}
LOADED = """
import gc, sys
from rankmill.__main__ import main
printed, sys.stdout = sys.stdout, sys.stderr
code = 0
try:
    main()
except SystemExit as end:
    code = end.code or 0
print(code, sum(each["collections"] for each in gc.get_stats()), *sorted(set(sys.modules) & {heavy!r}), file=printed)
"""
EVERY = "pydantic rich"  # Typer's own
ROWS, TREES = "numpy pyarrow numba", "numpy numba"
NEEDS = {"models list": "", "evaluate judgments.txt --model web@1": f"{ROWS} polars"}
"""Commands, and the libraries that they may load besides those that every command does."""
OTHERS_NEED = {
    "train web.dataset --name other --n-rounds 2 --preset defaults-1": f"{ROWS} joblib pyarrow.dataset",
    "rerank judgments.txt --model web@1 -o lists": f"{ROWS} duckdb",
    "--version": "",
    "data ingest judgments.txt -o other.dataset": f"{ROWS} pyarrow.dataset",
    "data bin web.dataset": f"{ROWS} pyarrow.dataset",
    "evaluate a.run --qrels qrels.txt": f"{ROWS} polars",
    "models show web@1": "",
    "models log web": "",
    "models verify web": "",
    "models alias web": "",
    "models gc --dry-run": "",
    "models diff web@1 web@1": "",
    "convert web@1 --to lightgbm -o web.txt": TREES,
    "data query web.dataset SELECT+1": "numpy pyarrow duckdb",
    "data describe web.dataset": f"{ROWS} polars pyarrow.dataset",
    "compare a.run b.run --qrels qrels.txt": f"{ROWS} polars",
    "explain-metric a.run --qrels qrels.txt --qid 1 --metric ndcg": f"{ROWS} polars",
}


def loaded_by(words, folder):
    """The heavy libraries that a command loads, in a process of its own."""
    code = LOADED.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)
    code, collections, *libraries = done.stdout.split()
    assert code == "0", done.stderr
    assert int(collections) < 60  # Python's own choice is about 400, a sixth of the time of a short command
    return set(libraries)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with judgments, a dataset, a model, and two runs with their qrels."""
    folder = tmp_path_factory.mktemp("commands")
    lines = [f"{(q + d) % 3} qid:{q} 1:{d / 7} 2:{(q * d) % 5} # d{d}" for q in range(1, 31) for d in range(8)]
    (folder / "judgments.txt").write_text("\n".join(lines) + "\n")
    for name, sign in (("a", 1), ("b", -1)):
        run = [f"{q} Q0 d{d} {d + 1} {sign * (8 - d)} {name}\n" for q in range(1, 31) for d in range(8)]
        (folder / f"{name}.run").write_text("".join(run))
    (folder / "qrels.txt").write_text("".join(f"{q} 0 d{d} {(q + d) % 3}\n" for q in range(1, 31) for d in range(8)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (
            "data ingest judgments.txt -o web.dataset",
            "data bin web.dataset",
            "train web.dataset --name web --n-rounds 2 --preset defaults-1",
        ):
            assert execute(command.split()) == 0
    return folder


SLOW = [pytest.param(command, marks=pytest.mark.slow) for command in OTHERS_NEED]


@pytest.mark.parametrize("command", [*NEEDS, *SLOW])
def test_a_command_loads_only_the_libraries_that_it_uses(command, folder):
    words = [word.replace("+", " ") for word in command.split()]
    assert loaded_by(words, folder) <= set(f"{EVERY} {(NEEDS | OTHERS_NEED)[command]}".split())
