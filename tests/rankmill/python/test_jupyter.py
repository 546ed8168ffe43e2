"""In a real Jupyter kernel: what is shown, and the example notebooks."""

import os
import sys
from pathlib import Path

import pytest

from tests import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))

SMALL = """
import numpy as np
from rankmill import Ranker
rng = np.random.default_rng(0)
X, qid = rng.normal(size=(200, 3)), np.repeat(np.arange(20), 10)
y = np.clip(np.round(X[:, 0] + 1), 0, 4)
"""


def executed(notebook, folder, monkeypatch):
    """Run a notebook in ``folder`` and return the outputs of its cells of code; fails as the first cell that fails
    does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_a_ranker_and_a_table_are_shown_in_a_notebook(tmp_path, monkeypatch):
    cells = [
        SMALL,
        "ranker = Ranker(n_rounds=7, max_leaves=3, verbose=0).fit(X, y, qid=qid)",
        "ranker",
        "from rankmill.foundation.terminal import text_table\nprint(text_table(['a', 'b'], [['x', '1']]))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    outputs = executed(notebook, tmp_path, monkeypatch)
    assert outputs[1] == []
    shown = outputs[2][0].data
    assert shown["text/html"].startswith('<div class="rankmill">')
    assert shown["text/plain"] == "Ranker(n_rounds=7, max_leaves=3, verbose=0)"
    assert [output.name for output in outputs[3]] == ["stdout"]  # rich would show a table by itself and leave no text
    assert "x" in outputs[3][0].text


@pytest.mark.slow
def test_databases_work_in_a_notebook_without_widgets(tmp_path, monkeypatch):
    cells = [
        "import sys; from pathlib import Path; sys.modules['ipywidgets'] = None",
        "from rankmill.pipeline.dataset.dataset import Dataset\nfrom rankmill.pipeline.dataset.sql import query_dataset",
        "from rankmill.pipeline.ingest import ingest",
        "_ = Path('a.csv').write_text('qid,doc_id,grade,x\\nq,d,1,0.5\\n')",
        "ingest([Path('a.csv')], Path('a'))\nprint(query_dataset(Dataset.open(Path('a')), 'SELECT x FROM features').to_pylist())",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    assert executed(notebook, tmp_path, monkeypatch)[-1][-1].text == "[{'x': 0.5}]\n"


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path, tmp_path, monkeypatch):
    """They are kept without outputs, and show charts and tables when they are run."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    outputs = [output for cell in executed(notebook, tmp_path, monkeypatch) for output in cell]
    tables = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert sum("vegaEmbed" in table for table in tables) >= 4
    assert sum(table.startswith('<div class="rankmill">') for table in tables) >= 3
    said = [output.text for output in outputs if output.get("name") == "stderr"]
    assert [
        text
        for text in said
        if not text.startswith(("compiling kernels", "round ", "fit: the model learns from the eval set"))
    ] == []


def test_there_is_an_example():
    assert [path.stem for path in EXAMPLES] == ["ranker"]
