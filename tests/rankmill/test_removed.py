"""Whoever uses what was removed gets one line that says what to use instead: on the command line, in rankmill.toml and in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill import Ranker
from rankmill.cli import execute
from rankmill.config_file import read_config
from rankmill.foundation.errors import ConfigError, InvalidParameter
from rankmill.removed import COMMAND, RANKER, REMOVED, Removed
from tests.refusals import only_line

ROWS = [(row, place) for row in REMOVED for place in row.places]


@pytest.mark.parametrize(("row", "place"), ROWS, ids=[f"{place} {row.name}" for row, place in ROWS])
def test_what_was_removed_is_answered_by_what_to_use_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Removed, place: str
) -> None:
    if place == RANKER:
        with pytest.raises(InvalidParameter) as refusal:
            Ranker(**{row.name: 1})
        answer = str(refusal.value)
    elif place.startswith("["):
        path = tmp_path / "rankmill.toml"
        tables = {"[ingest]": 'sources = ["a.txt"]', "[train]": 'name = "web"', place: ""}
        key, _, value = row.name.partition("=")
        tables[place] += f"\n{key} = {json.dumps(value) if value else 1}"
        path.write_text("\n".join(f"{section}\n{keys}" for section, keys in tables.items()))
        with pytest.raises(ConfigError) as mistake:
            read_config(path)
        answer = str(mistake.value).removeprefix(f"{path}: ")
    else:
        words = (
            row.name.split() if place == COMMAND else [*place.split(), f"--{row.name}", *["x"] * ("=" not in row.name)]
        )
        assert execute(words) == 2
        answer = only_line(capsys.readouterr().err).removeprefix("rankmill: ")
        where = place if place != COMMAND else row.name.rpartition(" ")[0]
        answer = answer.removeprefix(f"{where}: ")
    name = row.name.split()[-1]
    dashes = "" if place in {COMMAND, RANKER} or place.startswith("[") else "--"
    assert answer == f"{dashes}{name} was removed: {row.instead}"
