"""docs/operations.md: the four nights are as the page shows them, and backup and restore do what they say."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.registry import Registry
from tests import ROOT
from tests.docs.blocks import blocks

TEXT = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = [(block.mark.removeprefix("test: "), block.text) for block in blocks(TEXT) if block.kind == "sh"]


def lines(kind):
    found = [text for name, text in BLOCKS if name == kind]
    assert len(found) == 1
    return found[0].strip().splitlines()


def run(line):
    """Run one line: our own commands in this process, others as a shell would."""
    words = shlex.split(line)
    return execute(words[1:]) if words[0] == "rankmill" else subprocess.run(words, check=False).returncode


NIGHTS = re.search(r"^## Example: four nights$(.*)", TEXT, flags=re.MULTILINE | re.DOTALL)
TAKEN_BACK = 11  # what the two runs after the rollback leave with


@pytest.mark.slow
def test_the_nights_are_as_the_page_shows_them(tmp_path, monkeypatch, capsys):
    """All but the clocks, the numbers of processes, and the run that is killed."""
    assert NIGHTS is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    config = re.search(r"^```toml\n(.*?)^```$", NIGHTS[1], flags=re.MULTILINE | re.DOTALL)
    assert config is not None
    Path("rankmill.toml").write_text(config[1])
    Path("judgments").mkdir()
    Path("candidates").mkdir()
    codes = []
    for text in re.findall(r"^```console\n(.*?)^```$", NIGHTS[1], flags=re.MULTILINE | re.DOTALL):
        for reported in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = reported.partition("\n")
            if output.endswith("Killed\n"):  # while it trained
                line, output = f"{line} --until bin", ""
            capsys.readouterr()
            codes.append(run(line))
            said = "".join(capsys.readouterr())
            for promised in re.findall(r"now production.*|by web@\d$|skipped, .*", output, flags=re.MULTILINE):
                assert promised.split("; sha256")[0].rstrip(".") in said, line
    assert [code for code in codes if code] == [TAKEN_BACK, TAKEN_BACK]


def facts(number):
    digests = dict.fromkeys(("dataset_digest", "binspec_digest", "code_digest"), "0" * 63 + str(number))
    return {"features": ["f1"], **digests, "parameters": {}, "metrics": {}}


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """The registry of ``registry-data`` with two versions, the first in production."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    found = Registry("registry-data")
    for number in (1, 2):
        found.register("web", b"model %d" % number, manifest=facts(number))
    found.promote("web", 1, alias="staging", reason="night")
    return found


def state(folder):
    found = Registry(folder)
    versions = [found.resolve(f"web@{number}", bare="latest") for number in (1, 2)]
    return [entry.digest for entry in found.log("web")], [version.read() for version in versions], versions[0].aliases


def test_a_backup_taken_in_use_is_whole_and_restores_what_was(registry):
    make, logs, blobs, check = lines("backup")
    before = state("registry-data")
    assert run(make) == run(logs) == 0
    registry.register("web", b"model 3", manifest=facts(3))  # somebody works on meanwhile
    assert run(blobs) == 0
    assert run(check) == 0
    assert state("backup") == before

    shutil.rmtree("registry-data/models")  # what may go wrong
    assert [run(line) for line in lines("restore")] == [0] * 4
    assert state("registry-data") == before
    found = Registry("registry-data")
    assert found.register("web", b"model 3", manifest=facts(3)).number == 3  # and later versions can be registered


def test_the_other_way_round_a_backup_may_lack_what_its_log_refers_to(registry):
    make, logs, blobs, check = lines("backup")
    assert run(make) == run(blobs) == 0
    registry.register("web", b"model 3", manifest=facts(3))
    assert run(logs) == 0
    assert run(check) == 13


def test_a_model_travels_as_one_file(registry):
    assert [run(line) for line in lines("bundle")] == [0, 0, 0]
    assert state("other") == state("registry-data")
