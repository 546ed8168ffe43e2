"""What can go wrong in the front door itself.  ``rankmill.cli`` maps these classes to exit codes, as it does the rooms'."""

from __future__ import annotations


class RankmillError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(RankmillError):
    """The caller named a folder or file that cannot be used."""


class ConfigError(RankmillError):
    """The configuration breaks a rule; the message has the file, the key, what was found and the cure."""


class RunUnderWay(RankmillError):
    """Another run works in the same folder; the message says which."""


class Unhealthy(RankmillError):
    """No run of a work folder has worked for too long; the message says since when, and what is known."""
