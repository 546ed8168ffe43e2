"""What a person reads of a run on stderr."""

from __future__ import annotations

from rankmill.foundation.errors import ConfigError
from rankmill.run.events import Event, RunEnded
from rankmill.run.log_lines import TextLines
from tests.rankmill.observers.story import Ticking, failed, night, started


def lines_of(events: list[Event]) -> list[str]:
    ticking, lines = Ticking(), []
    ticking.tell(TextLines(lines.append, ticking.clock), events)
    return lines


def test_every_stage_says_what_it_does_why_and_what_came_out() -> None:
    assert lines_of(night()) == [
        "ingest: ingest it (not done yet)",
        "ingest: done: 1,200 documents, 60 queries, 12 features, 1 rejected rows [1.5 s]",
        "bin: bin it (not done yet)",
        "bin: done: largest PSI 0.200, 1 drifted [1.5 s]",
        "train: web (dataset is another)",
        "compiling",
        "train: done: web@7 [3.0 s]",
        "evaluate: evaluate it (not done yet)",
        "evaluate: done: test ndcg@10 0.4125 [1.5 s]",
        "gate: gate it (not done yet)",
        "gate: done: passed, ndcg@10 +0.0100 (-0.0010 to +0.0210) [1.5 s]",
        "promote: promote it (not done yet)",
        "promote: done: production is version 7 [1.5 s]",
        "rerank: rerank it (not done yet)",
        "rerank: done: 45 documents, 9 queries [1.5 s]",
        "report: skipped, nothing has changed",
        "run: done [25.5 s]",
    ]


def test_a_failure_is_left_to_whoever_ends_the_process() -> None:
    assert lines_of(failed(OSError(28, "No space left on device", "x"))) == [
        "ingest: 2 files (asked for)",
        "ingest: failed [1.5 s]",
        "run: failed, exit code 74 [4.5 s]",
    ]


def test_a_run_that_was_stopped_says_that_the_next_one_goes_on() -> None:
    lines = lines_of(failed(SystemExit(143), stopped=True, code=143))
    assert lines[1] == "ingest: stopped; the next run resumes here [1.5 s]"
    assert lines[2] == "run: stopped, exit code 143 [4.5 s]"


def test_a_run_before_that_died_is_told_of_and_no_line_breaks_the_terminal() -> None:
    begun = started(died="a run of yesterday died at train\n\x1b[2J\r")
    lines = lines_of([begun, RunEnded(outcome="unchanged", exit_code=0), *failed(ConfigError("a\nb"))])
    assert lines[0] == r"a run of yesterday died at train \u001b[2J\u000d"
    assert lines[1] == "run: unchanged [1.5 s]"
    assert all(line.isprintable() for line in lines)
