"""docs/python.md: its examples run, in their order, in an empty folder, and it speaks of every name."""

import os
import sys
from pathlib import Path

import pytest

import rankmill
from tests import ROOT
from tests.docs.blocks import run_page

PAGE = ROOT / "docs" / "python.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert run_page(PAGE) >= 8
    assert "web@1\n" in capfd.readouterr().out
    assert (tmp_path / "registry-data").is_dir()


def test_every_name_is_there():
    for name in set(rankmill.__all__) - {"__version__"}:
        assert f"`{name}`" in TEXT, name
