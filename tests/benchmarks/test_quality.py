"""The benchmark of quality: its bootstrap, its folds, its cache and its tables, without the peers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import quality, stopped
from benchmarks.intervals import Differences, paired_interval
from benchmarks.letor import Parts, Split
from benchmarks.quality_kinds import KINDS, of_kind
from benchmarks.quality_sets import Unit


def _spread(rng, mean, *sizes):
    return [mean + rng.normal(scale=0.1, size=size) for size in sizes]


def test_an_interval_holds_a_planted_difference_as_often_as_it_says():
    rng, held, planted = np.random.default_rng(5), 0, -0.05
    for trial in range(200):
        sets = [Differences(_spread(rng, planted, 30, 40)), Differences(_spread(rng, planted, 50))]
        found = paired_interval(sets, draws=400, seed=trial)
        assert found.low < found.mean < found.high
        held += found.low <= planted <= found.high
    assert 0.90 <= held / 200 <= 0.98


def test_where_folds_are_drawn_again_the_interval_includes_their_difference():
    folds = [np.full(100, mean) + np.tile([-0.01, 0.01], 50) for mean in (0.0, 0.1, 0.2, 0.3)]
    fixed, drawn = (paired_interval([Differences(folds, redraw_folds=redraw)]) for redraw in (False, True))
    assert fixed.mean == drawn.mean == pytest.approx(0.15)
    assert fixed.high - fixed.low < 0.01
    assert drawn.high - drawn.low > 0.1


def test_folds_rotate_as_the_readme_of_the_data_says(tmp_path):
    """Fold f trains on parts f, f+1, f+2, validates on f+3 and tests on f+4, cyclic: the feature is the part."""
    folder = tmp_path / "mq2008"
    folder.mkdir()
    for part in range(5):
        (folder / f"S{part + 1}.txt").write_text(f"1 qid:{part + 1} 1:{part}\n0 qid:{part + 1} 1:{part}\n")
    for fold in range(5):
        parts = Unit("mq2008", fold, seed=1).parts(tmp_path)
        seen = [sorted(set(split.x[:, 0].astype(int))) for split in (parts.train, parts.valid, parts.test)]
        expected = [[(fold + i) % 5 for i in steps] for steps in ((0, 1, 2), (3,), (4,))]
        assert seen == [sorted(part) for part in expected]


@pytest.mark.parametrize("name", KINDS)
def test_parts_of_a_generated_set_are_other_queries_of_the_same_signal(name):
    """The features that go with the grades are those of the other part, and not those of another seed."""

    def strengths(seed, part):
        split = of_kind(name, seed, part, 300)
        assert split.starts[-1] == len(split.grades) == len(split.x)
        if name == "one":
            assert (np.add.reduceat(split.grades, split.starts[:-1]) == 1).all()
        if name == "sparse":
            assert np.mean(split.grades == 0) == pytest.approx(0.91, abs=0.01)
            assert np.mean(split.x == 0.0) > 0.8
        return np.corrcoef(split.x.T, split.grades)[-1, :-1]

    first, second, other = strengths(1, 0), strengths(1, 1), strengths(2, 0)
    assert not np.array_equal(first, second)
    assert np.corrcoef(first, second)[0, 1] > 0.5
    assert np.corrcoef(first, other)[0, 1] < 0.5


def test_a_refitted_peer_trains_again_on_train_and_valid_for_the_rounds_found():
    parts, calls = _parts(), []

    def peer(given, parameters, rounds, patience):
        calls.append((len(given.train.sizes), len(given.train.x), parameters, rounds, patience))
        return stopped.Scored(np.zeros(len(given.test.x)), 17 if patience else rounds)

    assert stopped.refitted(peer)(parts, {"seed": 1}, 500, 50).rounds == 17
    assert calls == [(30, 300, {"seed": 1}, 500, 50), (40, 400, {"seed": 1}, 17, 0)]
    assert quality.BUILT_IN["lightgbm, refitted"].key != quality.BUILT_IN["lightgbm"].key


def test_a_system_is_written_with_its_parameters():
    system = quality.parse_ours(
        "a=max_leaves=8,objective=stochasticrank(sigma=0.5,samples=2),lambda_normalisation=false"
    )
    assert system.name == "a"
    assert system.settings == {
        "max_leaves": 8, "objective": "stochasticrank(sigma=0.5,samples=2)", "lambda_normalisation": False,
    }  # fmt: skip
    assert system.key != quality.parse_ours("a=max_leaves=8").key
    assert quality.parse_ours("a=max_leaves=8").key == quality.parse_ours("b=max_leaves=8").key
    assert quality.parse_ours("a=max_leaves=8", "new").key != quality.parse_ours("a=max_leaves=8").key


def _parts():
    rng = np.random.default_rng(2)

    def split(queries):
        x = rng.normal(size=(queries * 10, 3)).astype(np.float32)
        grades = np.clip(np.round(x[:, 0] + 0.5), 0, 3).astype(np.int32)
        return Split(x, grades, np.arange(0, queries * 10 + 1, 10))

    return Parts(split(30), split(10), split(40))


def test_what_is_in_the_cache_is_not_trained_again_and_fresh_is(tmp_path, monkeypatch):
    parts, trained = _parts(), []
    monkeypatch.setattr(Unit, "parts", lambda self, data: parts)
    monkeypatch.setattr(quality, "measure", lambda *given: trained.append(given) or measure(*given))
    one, two = quality.parse_ours("one=n_rounds=2"), quality.parse_ours("two=n_rounds=3,average=2")
    asked, cache = [Unit("generated-50", 0, seed) for seed in (1, 2)], quality.Cache(tmp_path)
    quality.train([one], asked, cache, tmp_path, [])
    assert len(trained) == 2
    quality.train([one, two], asked, cache, tmp_path, [])
    assert len(trained) == 4
    quality.train([one, two], asked, quality.Cache(tmp_path), tmp_path, ["one"])
    assert len(trained) == 6
    outcome = quality.Cache(tmp_path).get(two, asked[0])
    assert outcome.rounds <= 6  # of both members
    relevant = np.add.reduceat(parts.test.grades, parts.test.starts[:-1]) > 0
    assert np.array_equal(np.isfinite(outcome.ndcg), relevant)
    tables = quality.Report([one, two], asked, cache, one).render()
    assert f"| two | {np.mean([np.nanmean(cache.get(two, unit).ndcg) for unit in asked]):.4f} |" in tables
    assert tables.count("| two | ") == 4
    assert tables.count("| one | ") == 3  # it has no difference from itself


measure = quality.measure
