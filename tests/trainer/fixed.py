"""Parameters of the preset that chooses the same for all data, for tests of what one value does."""

from __future__ import annotations

from typing import Any

from rankmill.foundation.options import DEFAULTS
from rankmill.trainer.parameters import TrainParameters

FIXED = {"preset": DEFAULTS}


def fixed(**given: Any) -> TrainParameters:
    """Return the parameters ``given``, and the fixed values of the others."""
    return TrainParameters(**(FIXED | given))
