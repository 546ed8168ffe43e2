"""What every model rests on must not change unnoticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import rankmill.trainer._elementary

DIGEST = "ed4b2c2c5aa53a623e9dcb2b8451c1930dffb7b60b54ecf1bd04c6d0462a9acb"


def test_elementary_functions_are_what_they_were():
    """A cached kernel does not see an edit here, and models would change: put what is new into another file."""
    source = Path(rankmill.trainer._elementary.__file__).read_bytes()
    assert hashlib.sha256(source).hexdigest() == DIGEST
