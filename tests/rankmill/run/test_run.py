"""``rankmill run``: the chain from a configuration, twice, and what a mistake leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.registry import Registry
from rankmill.run.stage_choice import WITHOUT_CLICKS
from rankmill.run.work import Work
from tests.rankmill.run.run_events import read_lines
from tests.refusals import only_line, refused, unnamed

GATE = "[gate]\nmargin = 0.2\nallow_significantly_worse = true\n"  # a version of few trees may well be
CONFIG = f"""
work = "out"
[ingest]
sources = ["judgments/*.txt"]
split = {{train = 0.7, valid = 0.15, test = 0.15}}
max_grade = 4
buckets = 4
[bin]
max_bin = 63
[train]
name = "web"
n_rounds = 12
max_leaves = 8
[evaluate]
metrics = ["ndcg@10", "map"]
nothing_relevant = "zero"
{GATE}[rerank]
candidates = ["candidates.txt"]
top_k = 5
"""


def write_project(folder: Path) -> Path:
    """Judgments of two files, candidates, and a configuration that makes all of them."""
    (folder / "judgments").mkdir(parents=True)
    for part, seed in (("a", 1), ("b", 2)):
        path = folder / "judgments" / f"{part}.txt"
        write_synthetic(path, SynthParameters(queries=60, documents_per_query=10, features=12, seed=seed))
        path.write_text(path.read_text().replace("qid:", f"qid:{part}"))
    write_synthetic(folder / "candidates.txt", SynthParameters(queries=9, documents_per_query=10, features=12, seed=3))
    (folder / "rankmill.toml").write_text(CONFIG)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


UNTIL_RERANK = ("--until", "rerank")  # the report takes longer than all before it


def run(project: Path, *options: str) -> int:
    return execute(["run", str(project / "rankmill.toml"), "--registry", str(project / "registry"), *options])


OF_THE_RUN = {
    "lease",
    "digests.json",
    "last_run.json",
    "last_success.json",
    "log.jsonl",
}  # printed about itself, with times


def files_of(folder: Path) -> dict[str, str]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: file_digest(path) for name, path in found.items() if Path(name).name not in OF_THE_RUN}


def test_the_chain_runs_and_runs_again_to_the_same_bytes(project: Path, capsys) -> None:
    assert run(project, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    work = project / "out"
    assert report["model"]["version"] == "web@1"
    assert report["model"]["aliases"] == ["production"]
    assert report["evaluate"]["split"] == "test"
    assert list(report["evaluate"]["metrics"]) == ["map", "ndcg@10"]
    assert report["evaluate"]["policy"]["nothing_relevant"] == "zero"
    assert report["evaluate"]["policy"]["max_grade"] is None
    assert report["gate"]["passed"]
    assert report["gate"]["alias"] == "production"
    assert report["gate"]["baseline"] is None
    assert report["rerank"]["queries"] == 9
    assert report["rerank"]["top_k"] == 5
    assert report["rerank"]["model"]["sha256"] == report["model"]["sha256"]
    stored = json.loads((work / "evaluation.json").read_text())
    assert stored["metrics"] == report["evaluate"]["metrics"]
    assert stored["model"] == {"version": "web@1", "sha256": report["model"]["sha256"]}

    before = files_of(work)
    assert run(project, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again == report  # the same model again is the same version, not another one
    assert files_of(work) == before
    assert execute(["models", "list", "web", "--registry", str(project / "registry"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["versions"]) == 1


def test_a_person_reads_stages_on_stderr_and_a_summary_on_stdout(project: Path, capsys) -> None:
    text = CONFIG.replace(GATE, "").split("[rerank]")[0].replace(", test = 0.15}", "}").replace("0.7", "0.85")
    (project / "rankmill.toml").write_text(text)
    assert run(project) == 0
    out, err = capsys.readouterr()
    stages = dict.fromkeys(line.split(":")[0] for line in err.splitlines() if ": " in line and "preset" not in line)
    assert list(stages) == [*WITHOUT_CLICKS, "run"]
    lines = out.splitlines()
    assert lines[0].startswith(f"dataset   {project / 'out' / 'dataset'}: ")
    assert lines[1].startswith(f"model     web@1 in {project / 'registry'}, not promoted; sha256 ")
    assert lines[2].startswith("valid     ndcg@10 0.")  # there is no test split: the next best says so
    assert lines[3].startswith("report    ")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("judgments/*.txt", "judgements/*.txt", 2, "ingest.sources: no file matches '{project}/judgements/*.txt'"),
        ("candidates.txt", "candidates.tx", 2, "rerank.candidates: {project}/candidates.tx: no such file"),
        (
            "n_rounds",
            "n_round",
            2,
            "{project}/rankmill.toml: unknown key 'n_round' in [train]; did you mean 'n_rounds'?",
        ),
        ("judgments/*.txt", "rankmill.toml", 10, ""),
    ],
)
def test_a_mistake_stops_before_anything_is_made(
    project: Path, capsys, old: str, new: str, code: int, line: str
) -> None:
    (project / "rankmill.toml").write_text(CONFIG.replace(old, new))
    assert run(project) == code
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("rankmill: ")
    if line:
        assert err == "rankmill: " + line.format(project=project)
    assert not (project / "registry").exists()
    assert not files_of(project / "out")


def _expand(folder: Path, key: str, patterns: tuple[str, ...]) -> tuple[Path, ...]:
    config = folder / "rankmill.toml"
    config.write_text(CONFIG)
    return Work(config, folder / "registry").expand(key, patterns)


def test_only_the_pattern_is_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "c[1]*"
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert _expand(folder, "key", ("*.txt",)) == (folder / "a.txt",)
    assert _expand(folder, "key", ("sub/**/*.txt",)) == (folder / "sub/b.txt", folder / "sub/deep/c.txt")
    assert _expand(folder / "sub", "key", ("../*.txt",)) == (folder / "sub/../a.txt",)
    assert _expand(folder, "key", (f"{tmp_path}/c*/a.*",)) == (folder / "a.txt",)
    assert _expand(folder, "key", ("sub",)) == (folder / "sub/b.txt",)
    with refused(InputError, "key", "matches"):
        _expand(folder, "key", ("s[u]b",))


def test_a_model_that_cannot_rank_the_candidates_is_not_promoted(project: Path, capsys) -> None:
    (project / "candidates.txt").write_text("0 qid:1 1:0.5\n")
    assert run(project) == 10
    capsys.readouterr()
    assert execute(["models", "show", "web@1", "--registry", str(project / "registry"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aliases"] in ([], {})


def test_who_does_not_pass_is_registered_and_production_ranks_on(project: Path, capsys) -> None:
    assert run(project, *UNTIL_RERANK) == 0
    capsys.readouterr()
    (project / "rankmill.toml").write_text(
        CONFIG.replace("n_rounds = 12", "n_rounds = 1\nmax_depth = 1\npreset = 'defaults-1'").replace("= 0.2", "= 0.0")
    )
    assert run(project, *UNTIL_RERANK, "--json") == 11
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["model"]["version"], report["model"]["aliases"]) == ("web@2", [])
    assert (report["gate"]["passed"], report["gate"]["baseline"]) == (False, 1)
    assert (report["rerank"]["model"]["name"], report["rerank"]["model"]["number"]) == ("web", 1)
    assert "rerank: skipped, nothing has changed" in err
    assert not unnamed(err.splitlines()[-1], "web@2", "gate", "production")
    store = Registry(project / "registry")
    assert store.state("web").target("production") == 1
    assert [entry.change.op for entry in store.log("web")] == ["register", "gate", "promote", "register", "gate"]
    assert json.loads((project / "out" / "last_run.json").read_text())["outcome"] == "gate not passed"
    assert json.loads((project / "out" / "last_success.json").read_text())["outcome"] == "done"
    head = store.state("web").head
    assert run(project, *UNTIL_RERANK) == 11  # the same again: the same verdict, and nothing new in the log
    out, _ = capsys.readouterr()
    assert "gate      did not pass, for production" in out
    assert any(line.endswith(", by web@1") for line in out.splitlines())
    assert store.state("web").head == head


def test_a_significantly_worse_version_is_promoted_only_if_asked_for_and_the_terminal_says_so(project, capsys) -> None:
    assert run(project, *UNTIL_RERANK) == 0
    asked = CONFIG.replace("n_rounds = 12", "n_rounds = 1\nmax_depth = 1\npreset = 'defaults-1'").replace(
        "= 0.2", "= 1.0"
    )
    worse = asked.replace("allow_significantly_worse = true\n", "")
    (project / "rankmill.toml").write_text(worse)
    capsys.readouterr()
    assert run(project, *UNTIL_RERANK) == 11
    assert not unnamed(capsys.readouterr().err.splitlines()[-1], "significantly worse", "--allow-significantly-worse")
    (project / "rankmill.toml").write_text(asked)
    assert run(project, *UNTIL_RERANK) == 0
    out = capsys.readouterr().out
    assert "web@2 in" in out
    assert "now production" in out
    (said,) = (line for line in out.splitlines() if "SIGNIFICANTLY WORSE" in line)
    assert not unnamed(said, "note", "web@2", "web@1", "ndcg@10")
    assert "SIGNIFICANTLY WORSE" in (project / "out" / "gate.json").read_text()


def test_a_first_version_that_does_not_pass_ranks_nothing(project: Path, capsys) -> None:
    (project / "rankmill.toml").write_text(
        CONFIG.replace("n_rounds = 12", "n_rounds = 1\nmax_depth = 1\npreset = 'defaults-1'")
    )
    assert run(project, *UNTIL_RERANK, "--json") == 11
    out, err = capsys.readouterr()
    assert json.loads(out)["rerank"] is None
    assert not unnamed(err, "rerank", "skipped", "no version")


@pytest.mark.parametrize("made", [False, True])
def test_promoting_to_a_protected_alias_without_a_gate_is_said_before_anything_is_made(
    project: Path, capsys, made: bool
) -> None:
    if made:
        Registry(project / "registry").prepare(protected=("production",))
    (project / "rankmill.toml").write_text(CONFIG.replace(GATE, "[promote]\n"))
    assert run(project) == 2
    assert not unnamed(only_line(capsys.readouterr().err), "[promote]", "production", project / "registry", "[gate]")
    assert not list(project.glob("out/*"))


@pytest.mark.parametrize(
    ("split", "gate", "line"),
    [
        ("{train = 1.0}", "", "has neither a test nor a valid split to compare on"),
        ("{train = 0.8, valid = 0.2}", 'split = "test"', "has no test split to compare on"),
    ],
)
def test_a_gate_without_queries_is_said_before_the_training(
    project: Path, capsys, split: str, gate: str, line: str
) -> None:
    text = CONFIG.replace("{train = 0.7, valid = 0.15, test = 0.15}", split).replace("[gate]", f"[gate]\n{gate}")
    (project / "rankmill.toml").write_text(text)
    assert run(project) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
    assert not (project / "registry").exists()


def test_runs_write_their_log_for_machines(tmp_path: Path, capsys) -> None:
    project = write_project(tmp_path / "caf\u00e9 'x' ")
    log = project / "out" / "log.jsonl"
    assert run(project, "--json") == 0
    report, first = json.loads(capsys.readouterr().out), read_lines(log)
    (run_id,) = {record["run_id"] for record in first}
    done = {record["stage"]: record for record in first if record["event"] == "stage_done"}
    assert tuple(done) == WITHOUT_CLICKS
    assert first[-1]["outcome"] == "done"
    assert done["evaluate"]["facts"]["metrics"] == report["evaluate"]["metrics"]
    assert done["rerank"]["facts"]["rows_written"] == report["rerank"]["rows_written"]

    assert run(project) == 0
    second = read_lines(log)[len(first) :]
    assert (second[-1]["outcome"], second[-1]["exit_code"]) == ("unchanged", 0)
    assert {record["run_id"] for record in second}.isdisjoint({run_id})

    (project / "judgments" / "c.txt").write_text("not a line\n")
    assert run(project) == 10
    (failure,) = (record for record in read_lines(log) if record["event"] == "stage_failed")
    assert (failure["exit_code"], failure["stage"], failure["level"]) == (10, "ingest", "error")
    assert "c.txt:1:" in failure["message"]
