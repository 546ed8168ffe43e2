"""Read a file of TOML that a user wrote."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InvalidParameter


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a file; ``what`` it should hold is for messages.

    Raises
    ------
    InvalidParameter
        There is no such file, or it is not valid TOML; the message begins with the path, and the line and column if
        known.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise InvalidParameter(f"{path}: expected a file with {what}, found no file") from None
    except UnicodeDecodeError:
        raise InvalidParameter(f"{path}: expected UTF-8 text, found other bytes") from None
    except tomllib.TOMLDecodeError as error:
        place = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error))
        raise InvalidParameter(f"{path}:{place[2]}:{place[3]}: {place[1]}" if place else f"{path}: {error}") from None
