"""README.md and docs/: their size, links, commands and figures, and that generated pages are those of today."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module

import pytest
import yaml

from rankmill.config_file import read_config
from rankmill.reference import pages as reference_pages
from rankmill.reference.pages import generated
from tests import ROOT
from tests.docs.blocks import DOCS, blocks, commands, complaint, lines, written_pages

PAGES = [path.relative_to(ROOT).as_posix() for path in written_pages()]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
LONGEST, README_LINES, TERMS = 380, 120, 60


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


@cache
def anchors(path):
    """The anchors of a page, as the table of contents makes them."""
    text = path.read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head) for head in heads]
    slugs = [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in plain]
    return {*slugs, *re.findall(r'<span id="([^"]*)">', text)}


def test_every_link_leads_somewhere():
    broken = []
    for page in (*PAGES, *generated(), "CONTRIBUTING.md", "CHANGELOG.md"):
        path = ROOT / page if (ROOT / page).is_file() else DOCS / page
        for target in LINK.findall(without_code(path.read_text(encoding="utf-8"))):
            if re.match(r"https?:", target):
                continue
            place, _, anchor = target.partition("#")
            there = (path.parent / place).resolve() if place else path
            if not there.is_file() or (anchor and anchor not in anchors(there)):
                broken.append((page, target))
    assert not broken


def test_every_command_and_option_exists():
    wrong = []
    for page in PAGES:
        found = []
        for block in blocks(text_of(page)):
            found += [line for line in lines(block) if line.startswith("rankmill ") and block.kind in {"sh", "console"}]
        whole = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
        found += [span for span in re.findall(r"`(rankmill [^`\n]*)`", whole) if ".." not in span]
        wrong += [f"{page}: {line}: {said}" for line in found if (said := complaint(line)) is not None]
    assert not wrong


def test_every_configuration_is_valid(tmp_path):
    least = {"ingest": 'sources = ["a.csv"]', "train": 'name = "web"'}
    for block in (block for page in PAGES for block in blocks(text_of(page)) if block.kind == "toml"):
        missing = [f"[{name}]\n{line}\n" for name, line in least.items() if f"[{name}]" not in block.text]
        (tmp_path / "rankmill.toml").write_text(block.text + "".join(missing))
        read_config(tmp_path / "rankmill.toml")


def test_files_and_names_of_the_code_that_pages_name_exist():
    rooms = "pipeline|scorer|registry|trainer|foundation|rankmill|tests|docker|benchmarks"
    for page in (page for page in PAGES if "benchmarks/" not in page):
        for path in re.findall(rf"`((?:{rooms})/[\w./-]+)`", text_of(page)):
            assert (ROOT / path).exists(), f"{page}: {path}"
        for name in re.findall(r"`rankmill\.((?:pipeline|scorer|registry|trainer|foundation)\.[\w.]+)", text_of(page)):
            *module, last = name.split(".")
            home = import_module(f"rankmill.{'.'.join(module)}")
            assert hasattr(home, last) or import_module(f"rankmill.{name}"), f"{page}: {name}"


def test_pages_are_short():
    sizes = {page: len(text_of(page).splitlines()) for page in PAGES}
    sizes |= {page: len(text.splitlines()) for page, text in generated().items()}
    assert {page: size for page, size in sizes.items() if size > LONGEST} == {}
    assert sizes["README.md"] <= README_LINES
    assert len(re.findall(r"^\| ", text_of("docs/glossary.md"), flags=re.M)) - 1 <= TERMS


def test_generated_pages_are_those_of_today(capsys):
    assert reference_pages.main(["--check", str(DOCS)]) == 0, capsys.readouterr().err


def test_a_generated_page_that_is_out_of_date_is_named(tmp_path, capsys):
    docs, arguments = tmp_path / "docs", tmp_path / "scorer" / "arguments.py"
    assert reference_pages.main([str(docs)]) == 0
    assert arguments.read_bytes() == (ROOT / "scorer" / "arguments.py").read_bytes()
    assert reference_pages.main(["--check", str(docs)]) == 0
    page = docs / "reference" / "commands" / "train.md"
    page.write_text(page.read_text().replace("--max-leaves", "--most-leaves"))
    (page.parent / "gone.md").write_text("# rankmill gone\n")
    arguments.write_text("")
    assert reference_pages.main(["--check", str(docs)]) == 1
    said = capsys.readouterr().err
    assert "train.md: out of date" in said
    assert "arguments.py: out of date" in said
    assert "gone.md: out of date" in said
    assert reference_pages.main([str(docs)]) == 0
    assert "--max-leaves" in page.read_text()
    assert not (page.parent / "gone.md").exists()


def test_every_command_has_a_page_and_every_page_a_place_in_the_contents():
    def leaves(part):
        if isinstance(part, str):
            return [part]
        return [leaf for each in (part.values() if isinstance(part, dict) else part) for leaf in leaves(each)]

    contents = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(contents) == pages
    assert {f"reference/commands/{'-'.join(name)}.md" for name in commands()} <= set(pages)


def test_the_figures_of_the_readme_are_those_that_were_measured():
    measured = text_of("docs/benchmarks/training.md") + text_of("docs/benchmarks/other-speed.md")
    table = re.search(r"^\| \| training.*?\n\n", text_of("README.md"), flags=re.M | re.S)
    assert table is not None
    assert table[0].splitlines()[2:] == [
        re.sub(r"^\| (LightGBM|XGBoost|hessboost|CatBoost) ", rf"| \1 {versions}", line)
        for line, versions in zip(
            re.search(r"^\| \| training.*?\n\n", text_of("docs/benchmarks.md"), flags=re.M | re.S)[0].splitlines()[2:],  # type: ignore[index]
            ("", "4.7 ", "4.7 ", "3.4 ", "0.4 ", "1.2.10 ", ""),
            strict=False,
        )
    ]
    for name, seconds, memory, ndcg in (
        ("rankmill", "0.0382", "94", "0.7030"),
        ("lightgbm", "0.1147", "342", "0.7050"),
        ("lightgbm-quantised", "0.0881", "344", "0.6882"),
        ("xgboost", "0.1390", "197", "0.6832"),
        ("hessboost", "0.1366", "393", "0.6832"),
        ("catboost", "0.5721", "258", "0.6833"),
    ):
        row = re.search(rf"^\| {name} \|.*{seconds}.*{ndcg}.*\| {memory} \|$", measured, flags=re.M)
        assert row is not None, name
        label = name.replace("-", "[ 0-9.]*")
        reported = re.search(rf"^\| {label}.*$", table[0], flags=re.M | re.I)
        assert reported is not None
        for figure in (f"{float(seconds) * 1000:.0f}", memory, ndcg):
            assert figure in re.split(r"[ *|]+", reported[0]), (name, figure)
    for milliseconds in ("196", "6628"):
        assert f"| {milliseconds} (" in measured
        assert f"{int(milliseconds):,}" in table[0]


def test_an_unknown_command_would_be_noticed():
    assert complaint("rankmill train ds --name web --max-leafs 3") == "train has no option --max-leafs"
    assert complaint("rankmill models demote web") == "no command 'models demote'"
    assert complaint("rankmill models promote web@1 --reason 'why'  # --not-one") is None


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds the site as ``make docs`` does, after a change of a page."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed: make docs installs it")

    def run(page="", old="", new=""):
        place = tmp_path_factory.mktemp("site")
        shutil.copytree(DOCS, place / "docs")
        for name in ("mkdocs.yml", "rankmill", "pipeline", "scorer", "registry", "trainer", "foundation"):
            (place / name).symlink_to(ROOT / name)
        if page:
            path = place / "docs" / page
            assert old in path.read_text(encoding="utf-8")
            path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(build):
    built = build()
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr


@pytest.mark.slow
def test_a_broken_link_ends_the_build(build):
    built = build("quickstart.md", "(data.md)", "(data.md#nowhere)")
    assert built.returncode == 1
    assert "does not contain an anchor '#nowhere'" in built.stderr
