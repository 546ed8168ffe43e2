"""Team-draft interleaving by brute force over all coins, and its outcome against counting by hand and exact tests."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from fractions import Fraction
from math import comb

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from rankmill.cli import app, execute
from rankmill.clicks.interleaving import (
    interleaving_outcome,
    interval_of_share,
    read_interleaved,
    sign_test,
    team_draft,
    write_interleaved,
)
from rankmill.clicks.options import InterleavingOptions
from rankmill.foundation.errors import DataRejected, InputError
from tests import naive_clicks as naive
from tests.rankmill.clicks.test_click_models import log_of
from tests.refusals import refused


@pytest.mark.parametrize(
    ("one", "two"), [("abc", "cba"), ("abcd", "abcd"), ("abcd", "ebf"), ("a", "bcd"), ("", "ab"), ("abcde", "bacfg")]
)
@pytest.mark.parametrize("length", [1, 3, 9])
def test_all_coins_together_give_each_list_its_probability(one, two, length):
    coins = 2**7
    found = Counter(tuple(map(tuple, team_draft(one, two, length, number))) for number in range(coins))
    wanted = naive.team_drafts(one, two, length)
    assert {made: count / coins for made, count in found.items()} == wanted
    for made in found:
        documents = [document for document, _ in made]
        assert len(set(documents)) == len(documents) == min(length, len(set(one + two)))
        for team, ranking in enumerate((one, two)):  # a team's documents are in the order of its ranking
            mine = [document for document, t in made if t == team]
            assert mine == sorted(mine, key=ranking.index)
        if one and two:
            first = sum(count for made, count in found.items() if made[0][1] == 0)
            assert first == coins / 2


def table(rows: list[tuple[str, str, float]]) -> pa.Table:
    return pa.table(dict(zip(("qid", "doc_id", "score"), map(list, zip(*rows, strict=True)), strict=True)))


def rankings() -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(1)
    rows = [(f"q{q}", f"d{d}") for q in range(30) for d in range(15)]
    one, two = ([(*row, float(score)) for row, score in zip(rows, rng.random(len(rows)), strict=True)] for _ in "ab")
    return table(one), table([*two, ("only", "d", 1.0)])


def test_lists_depend_on_seed_query_and_draft_alone(tmp_path):
    one, two = rankings()
    options = InterleavingOptions(drafts=8, length=6)
    report = write_interleaved(tmp_path / "a.parquet", one, two, options)
    assert (report.queries, report.lists, report.only_one) == (30, 240, 1)
    shuffled = one.take(np.random.default_rng(2).permutation(len(one)))
    write_interleaved(tmp_path / "b.parquet", shuffled, two, options)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    found = pl.read_parquet(tmp_path / "a.parquet")
    few = one.filter(pa.compute.equal(one["qid"], "q7"))
    write_interleaved(tmp_path / "c.parquet", few, two, InterleavingOptions(drafts=3, length=6))
    drafts = ["draft 1", "draft 2", "draft 3"]
    assert found.filter(qid="q7").filter(pl.col("policy").is_in(drafts)).equals(pl.read_parquet(tmp_path / "c.parquet"))
    write_interleaved(tmp_path / "d.parquet", one, two, InterleavingOptions(drafts=8, length=6, seed=2))
    assert not found.equals(pl.read_parquet(tmp_path / "d.parquet"))
    first = found.filter(position=1)["team"].value_counts()
    assert 90 < first.filter(team="A")["count"].item() < 150  # 120 on average, standard deviation 8
    assert len(found.unique(["qid", "policy", "doc_id"])) == len(found) == 240 * 6


def test_the_sign_test_is_exact_and_the_interval_is_wilsons():
    for n in range(1, 12):
        for wins in range(n + 1):
            tail = Fraction(sum(comb(n, i) for i in range(min(wins, n - wins) + 1)), 2**n)
            assert sign_test(wins, n - wins) == pytest.approx(float(min(1, 2 * tail)), rel=1e-12)
            low, high = interval_of_share(wins, n)
            for share in (low, high):  # where the share of wins is 1.96 standard errors away
                if 0 < share < 1:
                    assert abs(wins - n * share) == pytest.approx(1.96 * (n * share * (1 - share)) ** 0.5, rel=1e-4)
            assert low <= wins / n <= high
    assert sign_test(0, 0) == 1.0
    assert sign_test(500_000, 502_500) == pytest.approx(0.01257, rel=0.01)  # normal with continuity correction


def log_with(lists: pa.Table, sessions: int, favour: float) -> pl.DataFrame:
    """Sessions that see a draft and click each document of team A with probability ``favour``, of B with 0.2."""
    rng = np.random.default_rng(7)
    by_list = pl.DataFrame(lists).partition_by("qid", "policy", maintain_order=True)
    rows = []
    for session in range(sessions):
        for query in rng.choice(30, 1 + session % 2, replace=False):
            for row in by_list[4 * query + rng.integers(4)].iter_rows(named=True):
                clicked = rng.random() < (favour if row["team"] == "A" else 0.2)
                rows.append({"session": f"s{session}", **row, "clicked": int(clicked)})
    return pl.DataFrame(rows)


def test_the_command_counts_as_by_hand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, ranking in zip("ab", rankings(), strict=True):
        pl.DataFrame(ranking).write_csv(f"{name}.csv")
    runner = CliRunner()
    words = ["clicks", "interleave", "a.csv", "b.csv", "-o", "lists.parquet", "--drafts", "4", "--length", "5"]
    assert "120 lists of 30 queries; 1 queries are in one" in runner.invoke(app, words).stdout
    log = log_with(read_interleaved(tmp_path / "lists.parquet"), 300, 0.5)
    other = log.head(5).with_columns(session=pl.lit("x"), policy=pl.lit("production"))
    pl.concat([log, other]).drop("team").write_parquet("log.parquet")
    facts = json.loads(
        runner.invoke(
            app, ["clicks", "interleaving-outcome", "log.parquet", "--lists", "lists.parquet", "--json"]
        ).stdout
    )
    ahead: dict[str, int] = {}
    for session, team, clicked in log.select("session", "team", "clicked").iter_rows():
        ahead[session] = ahead.get(session, 0) + clicked * (1 if team == "A" else -1)
    wins = sum(value > 0 for value in ahead.values()), sum(value < 0 for value in ahead.values())
    assert (facts["wins_a"], facts["wins_b"], facts["ties"]) == (*wins, 300 - sum(wins))
    assert (facts["lists"], facts["lists_without_teams"]) == (450, 1)
    by_team = dict(log.group_by("team").agg(pl.col("clicked").sum()).iter_rows())
    assert (facts["clicks_a"], facts["clicks_b"]) == (by_team["A"], by_team["B"])
    assert facts["p"] == sign_test(*wins) < 1e-6
    assert facts["share_a"] == wins[0] / sum(wins)
    text = runner.invoke(app, ["clicks", "interleaving-outcome", "log.parquet", "--lists", "lists.parquet"]).stdout
    assert "A is better" in text
    assert execute([*words]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert execute(["clicks", "interleaving-outcome", "log.parquet", "--lists", "a.csv"]) == 10
    assert execute(["clicks", "interleaving-outcome", "log.parquet", "--lists", "none.parquet"]) == 2


def test_refusals(tmp_path):
    one, two = rankings()
    with refused(DataRejected, "in common"):
        write_interleaved(tmp_path / "x.parquet", one, table([("z", "d", 1.0)]))
    with refused(DataRejected, "ranking B", "'d'"):
        write_interleaved(tmp_path / "x.parquet", one, table([("z", "d", 1.0)] * 2))
    with refused(InputError, "ranking A", "doc_id"):
        write_interleaved(tmp_path / "x.parquet", one.drop_columns(["doc_id"]), two)
    write_interleaved(tmp_path / "x.parquet", one, two)
    with refused(DataRejected, "policy"):
        interleaving_outcome(log_of(50).log, read_interleaved(tmp_path / "x.parquet"))
    assert list(itertools.chain(tmp_path.iterdir())) == [tmp_path / "x.parquet"]
