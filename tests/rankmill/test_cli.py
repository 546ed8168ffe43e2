"""The error boundary: which class of error leads to which line and which exit code, and how signals leave."""

from __future__ import annotations

import errno
import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from rankmill import __version__, cli
from rankmill.cli import UsageError
from rankmill.common_options import OF_COMMANDS
from rankmill.foundation import errors, exit_codes
from tests import ROOT
from tests.refusals import refused, unnamed
from tests.waiting import LIMIT, until


@pytest.fixture
def leave_with(monkeypatch):
    """Run one command that raises ``error`` and return the exit code."""

    def run(error):
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def fail() -> None:
            raise error

        monkeypatch.setattr(cli, "app", app)
        return cli.execute([])

    return run


def declared_errors():
    """Every error class of every room, the bases left out: those are never raised themselves."""
    return [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.RankmillError) and kind is not errors.RankmillError
    ]


def test_every_declared_error_has_an_exit_code():
    for kind in declared_errors():
        assert kind.exit_code in {2, 10, 11, 12, 13, 75} & exit_codes.MEANINGS.keys(), kind


def test_where_several_codes_apply_one_rules():
    ruling = exit_codes.ruling
    for first, *below in ([13, 10, 12, 11, 0], [143, 12, 11], [1, 12], [74, 12], [75, 11], [2, 12], [130, 13]):
        for other in below:
            assert ruling([other, first]) == ruling([first, other]) == first
    assert ruling([]) == 0
    for code in exit_codes.MEANINGS:
        assert ruling([code]) == code
        assert ruling([code, 12, 11, 0]) in {code, 12}  # a finding never hides what ended the run


def test_operations_say_what_to_do_for_every_code():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([0-9]+(?:, [0-9]+)*) \|", text, flags=re.MULTILINE)
    reported = {int(code) for row in rows for code in row.split(", ")}
    assert reported - {137} == {*exit_codes.MEANINGS} - {141}  # killed from outside; nobody pipes a schedule into head


def test_the_code_of_an_error_is_that_of_the_command_that_it_ends():
    code_of = errors.code_of
    assert [code_of(SystemExit(143)), code_of(SystemExit()), code_of(SystemExit("why"))] == [143, 0, 1]
    assert [code_of(KeyboardInterrupt()), code_of(BrokenPipeError()), code_of(ZeroDivisionError())] == [130, 141, 1]
    assert code_of(errors.MalformedLine(Path("a"), 1, 1, "", "x")) == 10
    assert code_of(errors.DriftAlarm("f moved")) == 12


def test_a_mistake_is_one_line_and_its_code(leave_with, capsys):
    malformed = errors.MalformedLine(Path("train.txt"), 1042, 17, "7:", "feature:value")
    unknown = errors.InputError.unknown("format", "letr", ["letor", "csv"])
    for error, code, line in (
        (malformed, 10, "train.txt:1042:17: expected feature:value, found '7:'"),
        (errors.DatasetFormatError("d: format 9"), 13, "d: format 9"),
        (unknown, 2, "unknown format 'letr'; did you mean 'letor'?"),
        (OSError(errno.ENOSPC, "No space left on device", "out/part"), 74, "out/part: No space left on device"),
        (OSError(errno.EXDEV, "Cross-device link", "a", None, "b"), 74, "a -> b: Cross-device link"),
        (OSError("the disk is gone"), 74, "the disk is gone"),
        (errors.InputError("two\nlines"), 2, "two lines"),
    ):
        assert leave_with(error) == code
        assert capsys.readouterr() == ("", f"rankmill: {line}\n")


def test_a_bug_shows_its_traceback_and_asks_for_a_report(leave_with, capsys):
    assert leave_with(ZeroDivisionError("oh")) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "ZeroDivisionError: oh" in err
    assert err.splitlines()[-1].startswith(f"rankmill: this is a bug in rankmill {__version__}; please report it")


def test_other_ways_to_leave_are_silent(leave_with, capsys):
    for leave, code in ((SystemExit(143), 143), (KeyboardInterrupt(), 130), (typer.Exit(11), 11)):
        assert leave_with(leave) == code
        assert capsys.readouterr() == ("", "")


def test_version(capsys):
    assert cli.execute(["--version"]) == 0
    assert capsys.readouterr().out == f"rankmill {__version__}\n"


def test_an_unknown_command_or_option_is_usage_with_the_nearest_name(typed):
    for words, *facts in (
        ("trian", "'trian'", "'train'"),
        ("data ingst", "data", "'ingst'", "'ingest'"),
        ("ingest a.csv", "'ingest'", "'rankmill data ingest'"),
        ("train --leaves 3", "train", "'--leaves'", "'--max-leaves'"),
    ):
        assert not unnamed(typed.refused(words), *facts)


AN_ARGUMENT = "it is an argument, not an option: rankmill"


def test_a_usage_error_is_one_line(capsys):
    for command, rest, line in (
        ("models show", "", "missing argument 'model'; see rankmill models show --help"),
        ("train", "d", "missing option '--name'; see rankmill train --help"),
        ("train", "d e --name m", "got unexpected extra argument(s) (e); see rankmill train --help"),
        ("evaluate", "--zzz", "unknown option '--zzz'; see rankmill evaluate --help"),
        ("train", "--n-estimators 9", "unknown option '--n-estimators'; did you mean '--n-rounds'?"),
        ("train", "--eval-at=5", "unknown option '--eval-at'; did you mean '--metric'?"),
        ("cv", "--random-state 1", "unknown option '--random-state'; did you mean '--seed'?"),
        ("compare", "--model a", f"unknown option '--model'; {AN_ARGUMENT} compare MODEL|SCORED|RUN..."),
        ("train", "--dataset d", f"unknown option '--dataset'; {AN_ARGUMENT} train DATASET"),
    ):
        assert cli.execute(f"{command} {rest}".split()) == 2
        assert capsys.readouterr() == ("", f"rankmill: {command}: {line}\n")


def test_without_a_command_it_says_where_to_start(capsys):
    assert cli.execute([]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) < 20
    assert max(map(len, out.splitlines())) <= 80
    for line in out.splitlines():  # each command that it names exists
        if line.startswith("  rankmill "):
            words = line.split("   ")[0].split()[1:]
            names = words[:2] if words[0] in {"data", "models"} else words[:1]
            assert cli.execute([*names, "--help"]) == 0


def commands(group=None, words=()):
    group = get_command(cli.app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def test_help_fits_the_terminal_and_shows_each_text_whole(monkeypatch, capsys):
    for number, (words, command) in enumerate(commands()):
        columns = (60, 80, 200)[number % 3]
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.execute([*words, "--help-all"]) == 0
        out = capsys.readouterr().out
        long = [line for line in out.splitlines() if len(line) > min(columns, 100)]
        assert all(" " not in line.strip() for line in long), words  # one word alone: there was nowhere to break it
        titles = [line for line in out.splitlines() if re.fullmatch(r"[A-Z][\w ]*:", line)]
        assert "Arguments:" not in titles or titles.index("Arguments:") < titles.index("Options:"), words
        flat = "".join(out.split())
        for param in command.params:
            assert "".join((getattr(param, "help", None) or "").split()) in flat, words
            assert param.param_type_name == "argument" or max(param.opts, key=len) in flat


def test_help_shows_at_most_25_options_and_says_where_the_others_are(capsys):
    for words, command in commands():
        assert cli.execute([*words, "--help"]) == 0
        out = capsys.readouterr().out
        tables = re.split(r"^[A-Z][\w ]*:$", out, maxsplit=1, flags=re.MULTILINE)[1]
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", tables, flags=re.MULTILINE)
        every = {max(param.opts, key=len) for param in command.params if param.param_type_name == "option"} | {"--help"}
        assert len(shown) <= 25, words
        assert set(shown) <= every
        if len(every) > len(shown):
            assert f"\n{len(every) - len(shown)} more options: " in out
            assert out.rstrip().endswith(f"{' '.join(words)} --help-all")
            required = [param for param in command.params if param.required and param.param_type_name == "option"]
            assert {max(param.opts, key=len) for param in required} <= set(shown)


def test_every_common_option_exists():
    by_name = {" ".join(words): {param.name for param in command.params} for words, command in commands()}
    for command, groups in OF_COMMANDS.items():
        assert {name for names in groups.values() for name in names} <= by_name[command], command


def test_prose_that_names_a_command_is_not_laid_out_as_an_example(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for words, texts in (
        (["schedule"], ("\nof rankmill run except --date.  The date is the day of", "\nonce.\n", "\n  Europe/Berlin")),
        (["models", "promote"], ("\nthe gate (rankmill models gate).",)),
    ):
        assert cli.execute([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert all(text in out for text in texts), out


def test_an_option_given_twice_keeps_both_values_or_is_refused():
    for words, command in commands():
        for param in (p for p in command.params if p.param_type_name == "option" and not p.is_flag):
            given = [word for value in ("1", "2") for word in (param.opts[0], value)]
            context = command.context_class(command, info_name=words[-1])
            if param.multiple:
                parsed, _, _ = command.make_parser(context).parse_args(args=list(given))
                assert parsed[param.name] == ["1", "2"], param.opts
            else:
                with refused(UsageError, "one", "2"):
                    command.parse_args(context, given)


def test_another_platform_gets_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert cli.execute(["--version"]) == 2
    assert capsys.readouterr().err == "rankmill: runs on Linux and macOS only; this is win32\n"


SLOW_COMMAND = """
import os, time, typer
from pathlib import Path
from rankmill import cli
from rankmill.common_options import OF_COMMANDS

app = typer.Typer()

@app.command()
def slow():
    staged = Path(os.environ["STAGED"])
    try:
        staged.touch()
        time.sleep(1000)
    finally:
        staged.unlink()

cli.app = app
cli.main()
"""


def test_a_signal_unwinds_so_that_staged_files_go(tmp_path):
    staged = tmp_path / "staged"
    environment = {**os.environ, "STAGED": str(staged)}
    process = subprocess.Popen([sys.executable, "-c", SLOW_COMMAND], cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    try:
        until(staged.exists, process)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 143
    assert not staged.exists()
    assert stderr == b""


@pytest.mark.parametrize("when", ["while it writes", "at the last flush"])
def test_a_reader_that_goes_away_is_no_error(when):
    """``rankmill ... | head -1``: quiet, and not our code for a bug."""
    read, write = os.pipe()
    text = "x" * 80 + "\n"
    printing = f"sys.stdout.write({text!r} * 10_000)" if when == "while it writes" else "sys.stdout.write('x')"
    code = (
        "import sys, typer\n"
        "from rankmill import cli\n"
        "app = typer.Typer()\n"
        f"app.command()(lambda: {printing} and None)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)
    _, stderr = process.communicate(timeout=LIMIT)
    assert stderr == b""
    assert process.returncode == 141


def test_python_dash_m_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "rankmill", "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"rankmill {__version__}\n")


@pytest.mark.parametrize(("given", "expected"), [(None, "3"), ("8", "8")])
def test_libraries_take_no_more_threads_than_the_container_may(given, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(cli, "available_cores", lambda: 3)
    monkeypatch.setattr(cli, "execute", lambda _arguments: 7)
    monkeypatch.setattr(cli, "end_on_signals", lambda: None)  # it would watch the process of the tests
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 7
    assert os.environ["OMP_NUM_THREADS"] == expected


def test_the_options_of_a_command_are_made_when_it_is_asked_for():
    """All commands together have some 400 options: making them would take a third of the time of a start."""
    commands = get_command(cli.app).commands
    assert "params" not in vars(commands["train"])
    assert {name for param in commands["train"].params for name in param.opts} > {"--name", "--n-rounds"}
    assert "params" in vars(commands["train"])
    assert "params" not in vars(commands["evaluate"])


def test_the_help_of_a_group_lists_its_commands_in_the_layout_of_a_command(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    app = get_command(cli.app)
    for words, group in (([], app), *(([name], app.commands[name]) for name in ("data", "models", "inspect"))):
        assert cli.execute([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 60
        assert "<bool>" not in out
        assert all(f"\n  {name} " in out for name in group.commands)
