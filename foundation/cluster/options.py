"""The option that names a cluster, declared once.  Importing this module is cheap."""

from __future__ import annotations

import re
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, options, spelled

_MOST_WORKERS = 1024


def local_workers(word: str, name: str = "cluster") -> int:
    """Return how many workers the text says to start here; 0 for the address of a Dask scheduler.

    InvalidParameter, about the option ``name``, if it is neither.

    >>> local_workers("local:4"), local_workers("tcp://10.0.0.5:8786")
    (4, 0)
    """
    if re.fullmatch(r"(tcp|tls)://[^\s/]+:[0-9]{1,5}", word):
        return 0
    found = re.fullmatch(r"local:([1-9][0-9]{0,3})", word)
    if found is None or int(found[1]) > _MOST_WORKERS:
        raise InvalidParameter(
            f"{spelled(name)} must be local:N with 1 to {_MOST_WORKERS:,} workers, or tcp://HOST:PORT of a Dask"
            f" scheduler, got {word!r}"
        )
    return int(found[1])


def checked_address(word: Any) -> str | None:
    """Return ``word`` as text, if it is given and names a cluster; InvalidParameter as `local_workers`."""
    if word is not None:
        local_workers(str(word))
    return None if word is None else str(word)


@options
class ClusterOptions:
    """Where to work."""

    cluster: str | None = option(
        default=None,
        help="Let the workers of a cluster do the work: local:N starts N of them here, tcp://HOST:PORT uses a running "
        "Dask scheduler (pip install 'rankmill[dask]').  Never changes the result.",
        metavar="local:N|tcp://HOST:PORT",
        convert=checked_address,
    )
