"""What every model rests on must not change unnoticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import rankmill.trainer._elementary

DIGEST = "29cf902de89f7a39d1abde7d400814a45265c466a29ef1ca80b3f2569e2e5d36"


def test_elementary_functions_are_what_they_were():
    """A cached kernel does not see an edit here, and models would change: put what is new into another file."""
    source = Path(rankmill.trainer._elementary.__file__).read_bytes()
    assert hashlib.sha256(source).hexdigest() == DIGEST
