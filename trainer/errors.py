"""What can go wrong while training.  The front door maps these classes to exit codes."""

from __future__ import annotations


class TrainerError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidParameter(TrainerError, ValueError):
    """A training parameter is outside its bounds, or unknown; the message has name, bound and value."""


class TrainingDataRejected(TrainerError):
    """The rows handed over cannot be learnt from: no train split, no two grades in any query."""


class WorkerLost(TrainerError):
    """A process that worked for us was killed from outside; the same command again goes on."""
