"""The option that names a cluster, declared once.  Importing this module is cheap."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, options, spelled

_MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the workers are: ``local`` processes to start here, or the ``scheduler`` of a running cluster."""

    local: int = 0
    scheduler: str = ""

    def __str__(self) -> str:
        return self.scheduler or f"local:{self.local}"


def cluster_address(word: str, name: str = "cluster") -> ClusterAddress:
    """Parse ``word``: ``local:N`` or the address of a scheduler.

    InvalidParameter, naming the option ``name``, if it is neither.

    >>> cluster_address("local:4"), str(cluster_address("tcp://10.0.0.5:8786"))
    (ClusterAddress(local=4, scheduler=''), 'tcp://10.0.0.5:8786')
    """
    if found := re.fullmatch(r"local:([1-9][0-9]{0,3})", word):
        number = int(found[1])
        if number <= _MOST_WORKERS:
            return ClusterAddress(local=number)
    elif re.fullmatch(r"(tcp|tls)://[^\s/]+:[0-9]{1,5}", word):
        return ClusterAddress(scheduler=word)
    raise InvalidParameter(
        f"{spelled(name)} must be local:N with 1 to {_MOST_WORKERS:,} workers, or tcp://HOST:PORT of a Dask scheduler,"
        f" got {word!r}"
    )


def _checked(word: Any) -> str | None:
    return None if word is None else str(cluster_address(str(word)))


@options
class ClusterOptions:
    """Where to work."""

    cluster: str | None = option(
        default=None,
        help="Let the workers of a cluster do the work: local:N starts N of them here, tcp://HOST:PORT uses a running "
        "Dask scheduler"
        " (pip install 'rankmill[dask]').  Never changes the result.",
        metavar="local:N|tcp://HOST:PORT",
        convert=_checked,
    )
