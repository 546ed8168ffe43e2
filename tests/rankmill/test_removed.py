"""A user of what was removed gets one line that says what to use instead: on the command line, in rankmill.toml and in
Python."""

import json

import pytest

from rankmill import Ranker
from rankmill.cli import execute
from rankmill.config_file import read_config
from rankmill.foundation.errors import ConfigError, InvalidParameter
from rankmill.removed import COMMAND, RANKER, REMOVED
from tests.refusals import only_line


def answer(row, place, path, capsys):
    """The message for a use of ``row`` in ``place``, without the place."""
    if place == RANKER:
        with pytest.raises(InvalidParameter) as refusal:
            Ranker(**{row.name: 1})
        return str(refusal.value)
    if place.startswith("["):
        tables = {"[ingest]": 'sources = ["a.txt"]', "[train]": 'name = "web"', place: ""}
        key, _, value = row.name.partition("=")
        tables[place] += f"\n{key} = {json.dumps(value) if value else 1}"
        path.write_text("\n".join(f"{section}\n{keys}" for section, keys in tables.items()))
        with pytest.raises(ConfigError) as mistake:
            read_config(path)
        return str(mistake.value).removeprefix(f"{path}: ")
    option = [*place.split(), f"--{row.name}", *["x"] * ("=" not in row.name)]
    assert execute(row.name.split() if place == COMMAND else option) == 2
    said = only_line(capsys.readouterr().err).removeprefix("rankmill: ")
    return said.removeprefix(f"{place if place != COMMAND else row.name.rpartition(' ')[0]}: ")


def test_what_was_removed_is_answered_by_what_to_use_instead(tmp_path, capsys):
    for row, place in ((each, place) for each in REMOVED for place in each.places):
        dashes = "" if place in {COMMAND, RANKER} or place.startswith("[") else "--"
        said = answer(row, place, tmp_path / "rankmill.toml", capsys)
        assert said == f"{dashes}{row.name.split()[-1]} was removed: {row.instead}", place
