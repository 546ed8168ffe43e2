"""A run that is killed is resumed, and leaves the same bytes as one that was left alone."""

import random
import sys

import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.evaluate import evaluate as evaluating
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.rerank import rerank
from rankmill.scorer.rerank import run as rerank_run
from rankmill.scorer.rerank import score as scoring
from rankmill.scorer.rerank import spill as sorting
from rankmill.scorer.rerank import write as ranked_writer
from rankmill.scorer.rerank.journal import NAME, Journal
from rankmill.scorer.rerank.memory import MemoryPlan
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, tree_of, write_csv, write_letor


class Killed(BaseException):
    """What no code of ours catches: it unwinds without cleaning, where `left_as_killed` is in force."""


@pytest.fixture
def left_as_killed(monkeypatch):
    """Let staging folders stay when `Killed` comes through, as they do when a process is gone."""
    from rankmill.foundation.storage import staging

    def discard(folder):
        if not isinstance(sys.exception(), Killed):
            real(folder)

    real = staging._discard
    monkeypatch.setattr(staging, "_discard", discard)


@pytest.fixture
def small_steps(monkeypatch):
    """Flush often, and cut small batches, parts and shards."""
    monkeypatch.setattr(rerank_run, "CHECKPOINT_ROWS", 100)
    monkeypatch.setattr(ranked_writer, "SHARD_ROWS", 60)
    monkeypatch.setattr(sorting, "BATCH_ROWS", 50)
    monkeypatch.setattr(sorting, "PARTS_OF_THE_LIMIT", 1 << 16)
    monkeypatch.setattr("rankmill.pipeline.read.columnar.ROWS", (1, 40))
    monkeypatch.setattr("rankmill.pipeline.read.parquet.PART_ROWS", 60)
    monkeypatch.setattr(MemoryPlan, "of", lambda total: MemoryPlan(total, 4000, 64 << 20))


def killed_at(monkeypatch, number):
    """Raise at the call of this number of those that leave something on the disk, counted over all of them."""
    calls = iter(range(10**6))

    def guard(function):
        def guarded(*arguments, **options):
            if next(calls) == number:
                raise Killed
            return function(*arguments, **options)

        return guarded

    for owner, name in (
        (sorting.ScoreSpill, "write"),
        (sorting.ScoreSpill, "checkpoint"),
        (rerank_run, "partition"),
        (Journal, "write"),
        (ranked_writer.ListWriter, "write"),
        (ranked_writer, "fsync_file"),
        (ranked_writer, "write_grade_counts"),
        (rerank_run, "replace_folder"),
        (rerank_run, "publish_file"),
    ):
        monkeypatch.setattr(owner, name, guard(getattr(owner, name)))


def sources_of(folder, rows):
    pq.write_table(as_table(rows[:400]), folder / "a.parquet", row_group_size=90)
    return [folder / "a.parquet", write_letor(folder / "b.txt", rows[400:650]), write_csv(folder / "c.csv", rows[650:])]


@pytest.mark.usefixtures("left_as_killed", "small_steps")
@pytest.mark.parametrize(("out", "most"), [("out", 60), ("out.tsv", 25)])
def test_kills_at_any_moment_leave_no_trace(tmp_path, monkeypatch, out, most):
    forest = random_forest(5, n_trees=4, max_leaves=8)
    sources = sources_of(tmp_path, random_candidates(6, n_rows=900, n_queries=9, nameless=0.2))
    rerank.rerank(sources, forest, tmp_path / "whole" / out, top_k=30)
    expected = {name: data for name, data in tree_of(tmp_path / "whole").items() if "staging" not in name}
    draw = random.Random(most)
    (tmp_path / "killed").mkdir()
    deaths = 0
    for number in sorted(draw.sample(range(4, most), 5)):
        with monkeypatch.context() as patch:
            killed_at(patch, number)
            try:
                rerank.rerank(sources, forest, tmp_path / "killed" / out, top_k=30, n_threads=draw.choice([1, 2]))
            except Killed:
                deaths += 1
            else:
                break
    if not (tmp_path / "killed" / out).exists():
        rerank.rerank(sources, forest, tmp_path / "killed" / out, top_k=30)
    assert deaths > 1
    found = {name.replace("killed", "whole"): data for name, data in tree_of(tmp_path / "killed").items()}
    assert found == expected


@pytest.mark.usefixtures("left_as_killed", "small_steps")
def test_what_was_flushed_is_not_scored_again_unless_something_changed(tmp_path, monkeypatch):
    forest = random_forest(5, n_trees=4, max_leaves=8)
    rows = random_candidates(6, n_rows=900, n_queries=9)
    sources = sources_of(tmp_path, rows)
    scored = []
    for name in ("_scores", "_scores_by_column"):
        real = getattr(scoring, name)
        monkeypatch.setattr(
            scoring, name, lambda *arguments, real=real: scored.append(len(arguments[1])) or real(*arguments)
        )

    def kill_late(**options):
        with monkeypatch.context() as patch:
            patch.setattr(rerank_run, "replace_folder", lambda *_: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                rerank.rerank(sources, forest, tmp_path / "out", **options)
        assert len(list(tmp_path.glob(f".out.*.staging/{NAME}"))) == 1
        scored.clear()

    kill_late(top_k=5)
    rerank.rerank(sources, forest, tmp_path / "out", top_k=5)
    assert sum(scored) == 0
    first = tree_of(tmp_path / "out")
    for change in ("fresh", "top_k", "model", "input"):
        kill_late(top_k=5, overwrite=True)
        other = random_forest(6, n_trees=4, max_leaves=8) if change == "model" else forest
        if change == "input":
            write_letor(tmp_path / "b.txt", rows[400:640])
        report = rerank.rerank(
            sources,
            other,
            tmp_path / "out",
            top_k=6 if change == "top_k" else 5,
            overwrite=True,
            fresh=change == "fresh",
        )
        assert sum(scored) == report.rows == (890 if change == "input" else 900)
        assert (tree_of(tmp_path / "out") == first) == (change == "fresh")
        assert not list(tmp_path.glob(".out.*"))


@pytest.mark.usefixtures("small_steps")
def test_an_interrupt_leaves_what_is_flushed_and_an_error_leaves_nothing(tmp_path, monkeypatch):
    forest = random_forest(5, n_trees=4, max_leaves=8)
    sources = sources_of(tmp_path, random_candidates(6, n_rows=900, n_queries=9))
    for error, left in ((KeyboardInterrupt(), 1), (SystemExit(143), 1), (OSError(28, "No space left on device"), 0)):

        def fail(*_arguments, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(rerank_run, "replace_folder", fail)
            with pytest.raises(type(error)):
                rerank.rerank(sources, forest, tmp_path / "out", top_k=5)
        assert len(list(tmp_path.glob(".out.*.staging"))) == left
        assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("left_as_killed", "small_steps")
def test_damaged_leavings_are_not_resumed(tmp_path, monkeypatch):
    forest = random_forest(5, n_trees=4, max_leaves=8)
    sources = sources_of(tmp_path, random_candidates(6, n_rows=900, n_queries=9))
    rerank.rerank(sources, forest, tmp_path / "out")
    expected = tree_of(tmp_path / "out")
    for name, damage in ((NAME, b"{}"), ("out/part-00001.parquet", b"x"), ("out/part-00000.parquet", b"")):
        with monkeypatch.context() as patch:
            patch.setattr(rerank_run, "replace_folder", lambda *_: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                rerank.rerank(sources, forest, tmp_path / "out", overwrite=True)
        (folder,) = tmp_path.glob(".out.*.staging")
        (folder / name).write_bytes(damage)
        rerank.rerank(sources, forest, tmp_path / "out", overwrite=True)
        assert tree_of(tmp_path / "out") == expected


# ---- candidates that change while they are read ----------------------------------------------------------------------

TEXT = "qid,doc_id,grade,f1,f2\n" + "".join(f"q{q},d{d},{d % 2},{d},{q}\n" for q in range(5) for d in range(4))
CHANGES = {
    "grows": TEXT + "q9,d,0,1,1\n",
    "shrinks": TEXT[:-20],
    "is replaced": "qid,doc_id,grade,f1,f2\nz,d,1,1,1\n",
    "changes in place": TEXT.replace("q1", "q7"),
    "is removed": None,
}


def change(path, how):
    new = CHANGES[how]
    if how == "changes in place":
        with path.open("r+") as file:
            file.write(new)
        return
    if how in {"is replaced", "is removed"}:
        path.unlink()
    if new is not None:
        path.write_text(new)


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("out", ["out", "out.csv"])
def test_a_list_of_candidates_that_changed_is_not_written(tmp_path, monkeypatch, how, out):
    path, score = tmp_path / "a.csv", rerank_run.score
    path.write_text(TEXT)
    forest = random_forest(1, n_features=2)

    def changing(*arguments):
        score(*arguments)
        change(path, how)

    monkeypatch.setattr(rerank_run, "score", changing)
    with refused(InputError, path, "changed while it was read"):
        rerank.rerank(path, forest, tmp_path / out)
    assert {each.name for each in tmp_path.iterdir()} <= {"a.csv"}


@pytest.mark.parametrize("how", CHANGES)
def test_candidates_that_changed_are_not_evaluated(tmp_path, monkeypatch, how):
    path, scored_rows = tmp_path / "a.csv", evaluating.scored_rows
    path.write_text(TEXT)

    def changing(*arguments):
        found = scored_rows(*arguments)
        change(path, how)
        return found

    monkeypatch.setattr(evaluating, "scored_rows", changing)
    with refused(InputError, path, "changed while it was read"):
        evaluate(path, model=random_forest(1, n_features=2), metrics=["ndcg@5"])
