"""The commands and the Python of README.md and the guides run, in their order, in a folder with what they speak of."""

import shutil
from pathlib import Path

import pytest

from rankmill import load_model
from tests import ROOT
from tests.docs.blocks import DOCS, blocks, run_line, run_page

CONFIG = next(block.text for block in blocks((DOCS / "running.md").read_text(encoding="utf-8")) if block.kind == "toml")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """What the quick start leaves, and the other files that the guides name."""
    folder = tmp_path_factory.mktemp("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("RANKMILL_REGISTRY", raising=False)
        assert run_page(DOCS / "quickstart.md") == 10
        assert Path("web@1.report/index.html").is_file()
        rows = Path("judgments.csv").read_text().splitlines()
        head, body = rows[0].split(","), [row.split(",") for row in rows[1:]]
        at = {name: head.index(name) for name in head}
        Path("today.csv").write_text(rows[0] + "\n" + "".join(f"new{row}\n" for row in rows[1:31]))
        Path("features.csv").write_text("\n".join(",".join(row[: at["grade"]]) for row in [head, *body[:900]]) + "\n")
        grades = [(row[at["qid"]], row[at["doc_id"]], row[at["grade"]]) for row in body]
        Path("qrels.txt").write_text("".join(f"{qid} 0 {doc} {grade}\n" for qid, doc, grade in grades[:900]))
        for name, column in (("bm25.run", "bm25"), ("other.run", "clicks")):
            ranked = [(row[at["qid"]], row[at["doc_id"]], row[at[column]]) for row in body[:150]]
            Path(name).write_text("".join(f"{qid} Q0 {doc} 0 {score} first\n" for qid, doc, score in ranked))
        pairs = [(one, two) for one, two in zip(grades[::15], grades[1::15], strict=False) if one[2] != two[2]]
        ordered = [(one, two) if one[2] > two[2] else (two, one) for one, two in pairs]
        Path("pairs.csv").write_text("qid,better,worse\n" + "".join(f"{a[0]},{a[1]},{b[1]}\n" for a, b in ordered))
        for name in ("judgments", "candidates"):
            Path(name).mkdir()
            shutil.copy(f"{name}.csv", name)
        Path("rankmill.toml").write_text(CONFIG.replace("[train]", "[train]\nn_rounds = 10").replace("0.005", "0.1"))
        assert run_line("rankmill train web.dataset --name web --seed 8") == 0
        load_model("web@2").save("model.rankmill")
    return folder


@pytest.fixture
def place(start, tmp_path, monkeypatch):
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    folder = tmp_path / "here"
    shutil.copytree(start, folder, symlinks=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_the_readme_runs(place):
    for path in ("web.dataset", "registry-data", "web@1.report"):
        shutil.rmtree(path)
    Path("ranked.csv").unlink()
    assert run_page(ROOT / "README.md") == 2
    assert Path("ranked.csv").read_text().startswith("qid,doc_id,score,rank")
    assert Path("web.rankmill").is_file()


GUIDES = ("click-evaluation", "click-judgments", "clicks", "clicks-nightly", "concepts/registry", "comparing", "converting", "data", "few-queries", "gates", "goals", "inspecting", "nets", "nightly", "objectives", "presets", "report", "reranking", "running", "training", "tuning", "drift")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_runs(page, place):
    if page == "drift":
        assert (
            run_line("rankmill data ingest judgments.csv -o by_hash.dataset --split train=0.6,valid=0.2,test=0.2") == 0
        )
    if page == "inspecting":
        shutil.rmtree("web@1.report")
    expected = {"rankmill data describe web.dataset --against by_hash.dataset --fail-on-drift": 0}
    assert run_page(DOCS / f"{page}.md", expected=expected) > 0


def test_every_guide_with_commands_is_run_or_says_why_not():
    run_elsewhere = {"quickstart", "python", "operations", "coming-from", "objectives/your-own"}
    left_out = {"index", "benchmarks", "synth"}  # all of their blocks have a mark
    found = set()
    for path in DOCS.rglob("*.md"):
        name = path.relative_to(DOCS).with_suffix("").as_posix()
        open_blocks = [
            block
            for block in blocks(path.read_text(encoding="utf-8"))
            if block.kind in {"sh", "python"} and not block.mark
        ]
        if open_blocks and not name.startswith("reference/"):
            found.add(name)
    assert found - run_elsewhere == set(GUIDES)
    assert not found & left_out
