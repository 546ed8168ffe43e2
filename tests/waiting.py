"""Waiting for what another process or thread does, with one limit that a busy machine does not reach."""

import time

LIMIT = 300.0
"""Seconds after which a test gives up.  It is no expectation: what is waited for takes moments on a machine that is idle."""


def until(happened, process=None):
    """Wait until ``happened()`` is true; fails when ``process``, which should bring it about, ends before, or after
    `LIMIT`."""
    end = time.monotonic() + LIMIT
    while True:
        ended = process is not None and process.poll() is not None
        if happened():
            return
        assert not ended, f"it ended with {process.returncode} before"  # type: ignore[union-attr]
        assert time.monotonic() < end, f"it did not happen within {LIMIT:.0f} s"
        time.sleep(0.01)
