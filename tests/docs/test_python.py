"""docs/python.md: its examples run, in their order, in an empty folder, and it speaks of every name."""

import os
import re
import sys
from pathlib import Path

import pytest

import rankmill
from tests import ROOT

TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of docs/python.md", "exec"), names)
    assert "web@1\n" in capfd.readouterr().out
    assert (tmp_path / "registry-data").is_dir()
    assert names["latest"].loaded_from_ == "web@1"
    assert len(BLOCKS) >= 8


def test_every_name_is_there():
    for name in set(rankmill.__all__) - {"__version__"}:
        assert f"`{name}`" in TEXT, name
