"""SIGTERM and SIGINT end every command within two seconds, in the foreground and behind ``&``, with 143 and 130 and
without a word."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.rankmill.test_cli import commands
from tests.waiting import until

WITHIN = 2.0
ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range % 7 = b.range"
SIGNALS = {signal.SIGTERM: 143, signal.SIGINT: 130}
ON = "--on dataset"

COMMANDS = {
    "demo": "-o {out}/demo",
    "run": "{out}/run.toml",
    "schedule": "{out}/run.toml --cron '* * * * *' --run-at-start",
    "health": ". --max-age 26h",
    "train": "dataset --n-rounds 300 --registry {out}/registry --name web",
    "cv": "dataset --n-rounds 100",
    "tune": "dataset -o {out}/tuning --minutes 1",
    "select-features": "dataset -o {out}/selection --n-rounds 30",
    "rerank": "judged.parquet --model web -o {out}/ranked --memory 512MB",
    "evaluate": "dataset --model web",
    "explain-metric": "ranked --qid 1 --metric ndcg@10",
    "compare": f"web@1 web@2 {ON}",
    "convert": "web -o {out}/web.onnx",
    "report": "web -o {out}/report",
    "doctor": "",
    "warm": "",
    "data ingest": "judged.parquet -o {out}/dataset --split train=0.8,valid=0.1,test=0.1",
    "data bin": "{out}/unbinned",
    "data describe": "dataset",
    "data query": f"dataset '{ENDLESS}'",
    "data synth": "-o {out}/synth.parquet --queries 20000",
    "models list": "",
    "models show": "web",
    "models log": "web",
    "models verify": "",
    "models promote": "web@1 --reason why",
    "models rollback": "web --to 1 --reason why",
    "models alias": "web",
    "models init": "--registry {out}/registry",
    "models gc": "",
    "models export": "web -o {out}/web.tar",
    "models import": "web.tar --registry {out}/registry",
    "models copy": "--to {out}/registry",
    "models gate": f"web@2 {ON}",
    "models register": "web.rankmill --name other --registry {out}/registry",
    "models merge": "web@1 web@2 --name both --registry registry",
    "models blend": f"web@1 web@2 {ON} --name both",
    "models diff": "web@1 web@2",
    "inspect influence": f"web {ON}",
    "inspect dependence": f"web f1 {ON}",
    "inspect interaction": f"web {ON}",
    "inspect shap": f"web {ON} -o {{out}}/shap.parquet",
    "inspect leaves": f"web {ON} -o {{out}}/leaves.parquet",
    "inspect why": f"web {ON} --qid 1",
    "inspect combine": f"web@1 web@2 {ON}",
    "inspect optimality": f"web {ON}",
    "clicks judge": "log.parquet --propensities pbm.json -o {out}/judged.parquet",
    "clicks describe": "log.parquet",
    "clicks fit": "log.parquet -o {out}/pbm.json",
    "clicks evaluate": "log.parquet --propensities pbm.json --model web --on judged.parquet",
    "clicks interleave": "ranked ranked -o {out}/lists.parquet",
    "clicks interleaving-outcome": "log.parquet --lists lists.parquet",
}
"""Each command as it is given here; some of them end at once."""

TOML = """
[ingest]
sources = ["{judged}"]
split = {{train = 0.6, valid = 0.2, test = 0.2}}
[train]
name = "web"
[rerank]
candidates = ["{judged}"]
"""


def test_every_command_is_tried():
    assert sorted(" ".join(words) for words, _ in commands()) == sorted(COMMANDS)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    for line in (
        "data synth -o judged.parquet --queries 3000 --docs-per-query 60 --features 20 --clicks log.parquet --sessions 100000 --swapped 0.1",
        "data ingest judged.parquet -o unbinned --split train=0.8,valid=0.1,test=0.1",
    ):
        command(folder, line)
    shutil.copytree(folder / "unbinned", folder / "dataset")
    for line in (
        "data bin dataset",
        "train dataset --n-rounds 20 --name web",
        "train dataset --n-rounds 30 --name web",
        "models promote web@2 --reason why --force",
        "rerank judged.parquet --model web -o ranked",
        "models export web -o web.tar",
        "clicks interleave ranked ranked -o lists.parquet",
        "clicks fit log.parquet -o pbm.json",
    ):
        command(folder, line)
    blob = max((folder / "registry" / "blobs").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    shutil.copy(blob, folder / "web.rankmill")
    return folder


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "RANKMILL_REGISTRY": "registry"}


def command(folder, line):
    subprocess.run(f"{sys.executable} -m rankmill {line}", shell=True, cwd=folder, env=environment(), check=True)


def heeds(process):
    """Whether the process has handlers of both signals."""
    caught = next(
        line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return all(int(caught.split()[1], 16) >> (number - 1) & 1 for number in SIGNALS)


def is_group(number):
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def end(folder, line, number, wait, *, behind):
    """Run a command, send it a signal after ``wait`` seconds, and return its exit code, how long it took from there,
    and stderr."""
    ignored = "trap '' INT; " if behind else ""  # as a shell without job control does
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            f"{ignored}exec {sys.executable} -m rankmill {line}", shell=True, cwd=folder, env=environment(),
            stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
        )  # fmt: skip
        try:
            until(lambda: heeds(process.pid), process)
            time.sleep(wait)
            began = time.monotonic()
            process.send_signal(number)
            process.wait(60)
        finally:
            process.kill()
        took = time.monotonic() - began
        until(
            lambda: not is_group(process.pid)
        )  # no process of its session is left: helpers of joblib end moments later
        err.seek(0)
        return process.returncode, took, err.read()


def check(prepared, tmp_path, name, number, *, behind, wait):
    for moment in range(8):
        out = tmp_path / f"{number}-{behind}-{moment}"
        out.mkdir()
        if "{out}/unbinned" in COMMANDS[name]:
            shutil.copytree(prepared / "unbinned", out / "unbinned")
        (out / "run.toml").write_text(TOML.format(judged=prepared / "judged.parquet"))
        line = f"{name} {COMMANDS[name].format(out=out)}"
        code, took, err = end(prepared, line, number, wait * 0.6**moment, behind=behind)
        assert took < WITHIN, (line, took)
        for word in ("Traceback", "bug", "leaked", "Exception"):
            assert word not in err, (line, err)
        if code == SIGNALS[signal.Signals(number)]:
            return
        assert code in {0, 2, 10, 11, 75}, (line, code, err)  # it had ended before: earlier the next time
    pytest.fail(f"{line} ends too soon")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "behind"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_every_command(prepared, tmp_path, name, number, behind):
    wait = random.Random(f"{name} {number} {behind}").uniform(0, 4)
    check(prepared, tmp_path, name, number, behind=behind, wait=wait)
