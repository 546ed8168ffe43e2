"""Parameters of the preset that chooses the same for all data, for tests of what one value does."""

from rankmill.foundation.options import DEFAULTS
from rankmill.trainer.parameters import TrainParameters

FIXED = {"preset": DEFAULTS}


def fixed(**given):
    """Return the parameters ``given``, and the fixed values of the others."""
    return TrainParameters(**(FIXED | given))
