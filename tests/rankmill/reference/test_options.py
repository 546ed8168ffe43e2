"""Options are declared once: what a group says is what the command line, the configuration, Python and the reference
have."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest

from rankmill import cli
from rankmill.foundation.errors import InvalidParameter, RankmillError
from rankmill.foundation.options import (
    argument_type,
    declared_in,
    default_of,
    made_from,
    option,
    option_of,
    options,
    spelled_for,
)
from rankmill.reference.options import COMMANDS_OF
from rankmill.scorer.evaluate.compare import compare
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics import Policy
from rankmill.scorer.metrics.explain_metric import explain_metric
from rankmill.scorer.options import JudgedOptions, RerankOptions
from rankmill.scorer.rerank.rerank import rerank
from tests.rankmill.test_cli import commands
from tests.refusals import refused


def test_functions_show_their_options():
    for function, groups in (
        (rerank, (RerankOptions,)),
        (evaluate, (JudgedOptions, Policy)),
        (compare, (JudgedOptions, Policy)),
        (explain_metric, (Policy,)),
    ):
        shown = inspect.signature(function).parameters
        for each in (each for group in groups for each in declared_in(group)):
            assert (shown[each.name].default, shown[each.name].annotation) == (default_of(each), argument_type(each))
            assert f"\n{each.name} : {argument_type(each)}" in inspect.getdoc(function)
        assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())


def test_every_option_of_a_group_is_one_of_its_commands_with_the_same_help():
    known = {" ".join(words): command for words, command in commands()}
    for group, named in ((group, name) for group, names in COMMANDS_OF.items() for name in names):
        found = {param.name: param for param in known[named].params}
        for each in declared_in(group):
            if option_of(each).on_command_line and each.name in found:
                assert found[each.name].help.startswith(option_of(each).help)
        assert sum(each.name in found for each in declared_in(group)) >= len(declared_in(group)) - 4


def test_no_group_declares_an_option_that_another_one_of_its_commands_declares():
    """A command would have it twice."""
    for _, command in commands():
        flags = Counter(flag for param in command.params for flag in (*param.opts, *param.secondary_opts))
        assert [flag for flag, count in flags.items() if count > 1] == []


def test_a_new_option_is_one_declaration():
    @options
    class Speed:
        warp: int = option(default=1, help="How fast.", least=1, most=9)

    with refused(InvalidParameter, "warp", "1 .. 9", "10"):
        Speed(warp=10)
    with spelled_for("command line"), refused(InvalidParameter, "--warp", "1 .. 9", "10"):
        Speed(warp=10)
    with refused(InvalidParameter, "warp", "1.5"):
        Speed(warp=1.5)


MISTAKES = [
    ("max_rejects", -1, "{} must be 0 or more, got -1"),
    ("buckets", 0, "{} must be in 1 .. 4096, got 0"),
    ("unjudged", "keeep", "unknown value of {} 'keeep'; did you mean 'keep'?"),
    ("folds", 2, "{} and {fold} are needed together"),
    ("n_features", 1, "found '2:1'; {whole} is the limit"),  # a bad row
    ("max_rejects", 1, "(and more bad rows than {} 1 allows"),
    ("time_column", "day", "{} applies to tables only; "),
]


@pytest.mark.parametrize(("name", "value", "message"), MISTAKES)
def test_an_error_names_the_option_as_the_caller_wrote_it(tmp_path, monkeypatch, capsys, name, value, message):
    from rankmill.pipeline.ingest.run_ingest import ingest
    from rankmill.pipeline.options import IngestOptions

    monkeypatch.chdir(tmp_path)
    rows = "1 qid:1 1:1 2:1\n" if name != "max_rejects" else "1 qid:1 1:1\n1 qid:1 1:x\n1 qid:1 1:y\n"
    Path("rows.txt").write_text(rows)
    Path("rankmill.toml").write_text(f"[ingest]\nsources = ['rows.txt']\n{name} = {value!r}\n[train]\nname = 'web'\n")
    flag = f"--{name.replace('_', '-')}"

    assert cli.execute(["data", "ingest", "rows.txt", "-o", "out", flag, str(value)]) != 0
    assert message.format(flag, fold="--fold", whole=f"{flag} {value}") in capsys.readouterr().err
    assert cli.execute(["run"]) != 0
    assert message.format(name, fold="fold", whole=f"{name} = {value}") in capsys.readouterr().err
    with pytest.raises(RankmillError) as caught:
        ingest([Path("rows.txt")], Path("out"), options=made_from(IngestOptions, {name: value}))
    assert message.format(name, fold="fold", whole=f"{name}={value}") in str(caught.value)
    for said in (capsys.readouterr().err, str(caught.value)):
        assert "--" not in said
