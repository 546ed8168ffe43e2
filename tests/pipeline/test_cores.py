"""Cores: affinity and quota, whichever is less, and never none."""

import os

import pytest

from rankmill.foundation.cores import available_cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000\n", 4),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1600000 100000\n", 4),
        ("", 4),
        ("many 100000\n", 4),
        ("200000 0\n", 4),
        ("200000\n", 4),
        (None, 4),
    ],
)
def test_the_quota_bounds_the_affinity(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6}, raising=False)
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    assert available_cores(file) == cores


@pytest.mark.parametrize(("count", "cores"), [(3, 3), (None, 1)])
def test_without_affinity_the_machine_is_counted(tmp_path, monkeypatch, count, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert available_cores(tmp_path / "none") == cores


def test_this_process_has_one_at_least():
    assert available_cores() >= 1
