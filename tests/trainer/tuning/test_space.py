"""What a search draws: inside its bounds, as likely as it says, and by trial and name alone."""

from dataclasses import replace
from math import log2

import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.tuning.search import ordered
from rankmill.trainer.tuning.space import (
    ANY_TREES,
    DIGITS,
    SMALL_TREES,
    default_space,
    parse_vary,
    read_space,
    share_of,
    space_of,
)
from tests.refusals import refused

N = 4000


@pytest.mark.parametrize("name", ["layers", "dropout", "model"])
def test_options_of_nets_are_refused(name):
    with refused(InvalidParameter, name, "nets"):
        space_of({name: "1,2"}, "test")


def drawn(values, name="learning_rate", n=N):
    space = space_of({name: values}, "test")
    return [space.draw(7, trial)[name] for trial in range(n)]


def near(count, share, n=N):
    """Whether a count is within five standard deviations of the binomial's."""
    return abs(count - n * share) <= 5.0 * (n * share * (1.0 - share)) ** 0.5


def test_shares_are_uniform():
    shares = [share_of(3, trial, "x") for trial in range(N)]
    assert all(0.0 <= share < 1.0 for share in shares)
    for tenth in range(10):
        assert near(sum(tenth <= 10.0 * share < tenth + 1 for share in shares), 0.1)


def test_a_logarithmic_range_has_as_many_in_every_octave():
    found = drawn("0.01..0.32:log")  # five octaves
    assert all(0.01 <= value <= 0.32 for value in found)
    for octave in range(5):
        assert near(sum(octave <= log2(value / 0.01) < octave + 1 for value in found), 0.2)


def test_a_plain_range_has_as_many_in_every_part_of_it():
    found = drawn("0.5..1", "row_fraction")
    assert all(0.5 <= value <= 1.0 for value in found)
    for part in range(5):
        assert near(sum(0.5 + 0.1 * part <= value < 0.6 + 0.1 * part for value in found), 0.2)
    assert all(float(f"{value:.{DIGITS}g}") == value for value in found)


def test_whole_numbers_have_both_ends_in_them():
    found = drawn("3..7", "max_leaves")
    assert set(found) == {3, 4, 5, 6, 7}
    assert all(type(value) is int for value in found)
    for value in range(3, 8):
        assert near(found.count(value), 0.2)
    logarithmic = drawn("8..127:log", "max_leaves")  # [8, 128): four octaves
    assert min(logarithmic) >= 8
    assert max(logarithmic) <= 127
    for octave in range(4):
        assert near(sum(8 << octave <= value < 16 << octave for value in logarithmic), 0.25)


def test_choices_are_as_likely_and_may_have_options():
    found = drawn("lambdamart, quantile(alpha=0.2,), l2", "objective")
    assert set(found) == {"lambdamart", "quantile(alpha=0.2,)", "l2"}
    assert near(found.count("l2"), 1 / 3)
    assert set(drawn("true,false", "lambda_normalisation", 50)) == {True, False}
    assert drawn("0.1", n=3) == [0.1] * 3


def test_a_draw_depends_on_seed_trial_and_name_alone():
    one, more = space_of({"learning_rate": "0.01..1:log"}, "t"), default_space(small_trees=False)
    other = space_of({**ANY_TREES, "learning_rate": "0.01..1:log", "sigma": "0.5..2"}, "t")
    for trial in range(5):
        assert one.draw(7, trial)["learning_rate"] == other.draw(7, trial)["learning_rate"]
        assert {k: v for k, v in more.draw(7, trial).items() if k != "learning_rate"}.items() <= other.draw(
            7, trial
        ).items()
        assert one.draw(7, trial) == one.draw(7, trial) != one.draw(8, trial)


@pytest.mark.parametrize(("grow", "usual"), [("oblivious", SMALL_TREES), ("best_first", ANY_TREES)])
def test_the_default_space_is_allowed_and_gives_way_to_options(grow, usual):
    base, space = TrainParameters(grow=grow), default_space(small_trees=grow == "oblivious")
    space.check(base)
    for trial in range(200):
        replace(base, **space.draw(1, trial))
    left = default_space(small_trees=grow == "oblivious", without=["objective", "n_rounds"])
    assert set(left.parts) == set(usual) - {"objective"}


def test_a_file_says_the_same_as_the_command_line(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        'objective = ["lambdamart", "l2"]\nlearning_rate = "0.02..0.3:log"\nmax_leaves = [15, 31]\nsigma = 2\n'
    )
    line = parse_vary(["learning_rate=0.02..0.3:log", "objective=lambdamart,l2", "max_leaves=15,31", "sigma=2"])
    assert read_space(path) == space_of(line, "--vary")
    assert read_space(path).but(space_of({"max_leaves": "63"}, "t")).draw(1, 1)["max_leaves"] == 63
    with refused(InvalidParameter, "'learning-rate'", "'learning_rate'"):  # one spelling
        space_of(parse_vary(["learning-rate=0.02..0.3"]), "--vary")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rat": "0.1..0.2"}, ("t", "'learning_rat'", "'learning_rate'")),
        ({"seed": "1..9"}, "t: seed"),
        ({"learning_rate": "0.3..0.1"}, ("t: learning_rate", "LOW..HIGH", "'0.3..0.1'")),
        ({"lambda_l2": "0..1:log"}, "lambda_l2"),
        ({"max_leaves": "2.5..9"}, "max_leaves"),
        ({"max_leaves": [2.5]}, "max_leaves"),
        ({"max_leaves": []}, "max_leaves"),
        ({"learning_rate": "0.1..0.2:lin"}, "learning_rate"),
        ({"lambda_normalisation": "maybe"}, "lambda_normalisation"),
        ({"objective": 3}, "objective"),
        ({}, ("t", "one parameter")),
    ],
)
def test_what_is_no_space_is_refused(given, message):
    with refused(InvalidParameter, message) as caught:
        space_of(given, "t")
    assert "\n" not in str(caught.value)


def test_bounds_of_parameters_are_kept(tmp_path):
    with refused(InvalidParameter, "learning_rate", "(0, 1]"):
        space_of({"learning_rate": "0.5..2"}, "t").check(TrainParameters())
    with refused(InvalidParameter, "objective", "'lambdamard'"):
        space_of({"objective": "l2,lambdamard"}, "t").check(TrainParameters())
    for text, message in (("a = = 1", "space.toml:1:5"), ("", "one parameter")):
        (tmp_path / "space.toml").write_text(text)
        with refused(InvalidParameter, message):
            read_space(tmp_path / "space.toml")
    with refused(InvalidParameter, "file"):
        read_space(tmp_path / "none.toml")
    with pytest.raises(InvalidParameter, match="NAME="):
        parse_vary(["learning_rate"])


def test_a_loss_is_better_the_lower_it_is():
    assert ordered({0: 3.0, 1: 1.0, 2: 2.0, 3: 1.0, 4: None}, higher_is_better=False) == [1, 3, 2, 0, 4]
