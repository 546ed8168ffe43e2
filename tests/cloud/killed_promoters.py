"""One process that promotes in a bucket until it is killed: run by `test_killed_promoters`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.registry import killed_writers

if __name__ == "__main__":
    root: Any = sys.argv[1]  # a URL, which the registry takes like a folder
    print("ready", flush=True)
    sys.stdin.readline()
    killed_writers.write(root, Path(sys.argv[2]), killed_writers.promote, int(sys.argv[3]))
    os._exit(1)
