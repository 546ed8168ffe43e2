"""SIGTERM during each long command: 143 within seconds, nothing half-written, nobody left behind, and the rerun is as
if nothing was.

What stays may be something to resume from (a folder aside of a re-ranking, bins that no manifest names yet); what a
reader sees is what was there before.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from tests import ROOT
from tests.pipeline.ingest.interrupted import start
from tests.waiting import LIMIT

TRAIN = ("train", "dataset", "--registry", "registry", "--n-rounds")


WHOLE = {"ingest": "unbinned", "bin": "dataset", "rerank": "ranked"}
"""What the commands make, as it was made when everything was prepared."""


@dataclass(frozen=True)
class Case:
    """A command run in a folder with what ``needs`` names, and what it makes there."""

    command: tuple[str, ...]
    needs: tuple[str, ...]
    makes: str | None = None
    at: tuple[str, int] | None = None
    """The operation on a file at which it is terminated, for the ordinary tests: the first on such a path, and so many behind it."""


CASES = {
    "ingest": Case(
        ("data", "ingest", "judgments.txt", "-o", "new", "--buckets", "4", "--block-size", "64KiB"),
        ("judgments.txt",), "new", ("staging/spill", 4),
    ),
    "bin": Case(("data", "bin", "unbinned"), ("unbinned",), "unbinned", ("staging/", 5)),
    "train": Case((*TRAIN, "40", "--name", "web"), ("dataset",), "registry/blobs"),
    "rerank": Case(
        ("rerank", "judgments.txt", "--model", "web@1", "--registry", "models", "-o", "ranked"),
        ("judgments.txt", "models"), "ranked", (".ranked.", 4),
    ),
    "evaluate": Case(
        ("evaluate", "judgments.txt", "--model", "web@1", "--registry", "models"), ("judgments.txt", "models")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    write_synthetic(folder / "judgments.txt", SynthParameters(queries=300, documents_per_query=20, features=20, seed=3))
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert execute(["data", "ingest", "judgments.txt", "-o", "unbinned", "--buckets", "4"]) == 0
        shutil.copytree(folder / "unbinned", folder / "dataset")
        assert execute(["data", "bin", "dataset"]) == 0
        assert execute(["train", "dataset", "--registry", "models", "--n-rounds", "3", "--name", "web"]) == 0
        assert execute(list(CASES["rerank"].command)) == 0
    finally:
        os.chdir(before)
    yield folder
    shutil.rmtree(folder)


def prepare(case, prepared, folder):
    folder.mkdir()
    for name in case.needs:
        copy = shutil.copytree if (prepared / name).is_dir() else shutil.copy
        copy(prepared / name, folder / name)
    return folder


def seen(folder):
    """The files that a reader sees, by digest: none in hidden folders, and of a dataset those that its manifest names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") for part in parts) and parts[:1] != ("registry",):
            found["/".join(parts)] = file_digest(path)
    return {name: digest for name, digest in found.items() if "/_bins/" not in name}


def files_of(top):
    return {str(path.relative_to(top)): file_digest(path) for path in top.rglob("*") if path.is_file()}


def made(case, folder):
    return files_of(folder if case.makes is None else folder / case.makes)


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


def run_to_the_end(case, folder):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rankmill", *case.command], cwd=folder, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def check_nobody_is_left(process):
    """No process of its session is alive, so none of its threads is."""
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow
def test_terminated_while_files_are_made(prepared, tmp_path, monkeypatch):
    processes = {}
    for name, case in CASES.items():
        if case.at is not None:
            folder = prepare(case, prepared, tmp_path / name)
            part, number = case.at
            command = [word if not (folder / word).exists() else folder / word for word in case.command]
            command = [folder / word if word == case.makes else word for word in command]
            processes[name] = start(folder, command, action="end", part=part, number=number)
    for name, process in processes.items():
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 143, (name, err)
        assert "Traceback" not in err
    for name in processes:
        case, folder = CASES[name], tmp_path / name
        assert seen(folder) == {key: value for key, value in seen(prepared).items() if key.split("/")[0] in case.needs}
        monkeypatch.chdir(folder)
        assert execute(list(case.command)) == 0
        assert made(case, folder) == files_of(prepared / WHOLE[name]), name
        assert not list(folder.glob(".*.staging"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_terminated_at_any_moment(name, prepared, tmp_path):
    case, rng = CASES[name], random.Random(name)
    whole = prepare(case, prepared, tmp_path / "whole")
    lasts = run_to_the_end(case, whole)
    wanted, ended = made(case, whole), 0
    for moment in itertools.count():
        if moment >= 2 and ended:
            break
        folder = prepare(case, prepared, tmp_path / str(moment))
        process = subprocess.Popen(
            [sys.executable, "-m", "rankmill", *case.command], cwd=folder, env=environment(), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        time.sleep(lasts * rng.uniform(0.25, 1.0) * 0.8 ** max(moment - 1, 0))  # earlier, as long as it comes too late
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
        # -15: terminated while Python itself was starting; 0: it had done all
        assert process.returncode in {143, 0, -signal.SIGTERM}, err
        assert "Traceback" not in err
        check_nobody_is_left(process)
        if process.returncode != 0:
            ended += 1
            assert seen(folder) == {key: of for key, of in seen(prepared).items() if key.split("/")[0] in case.needs}
            run_to_the_end(case, folder)
        assert made(case, folder) == wanted
        assert not list(folder.glob(".*.staging"))
        shutil.rmtree(folder)
