"""One process that promotes in a bucket until it is killed: run by `test_killed_promoters`."""

import os
import sys
from pathlib import Path

from tests.registry import killed_writers

if __name__ == "__main__":
    root = sys.argv[1]  # a URL, which the registry takes like a folder
    print("ready", flush=True)
    sys.stdin.readline()
    killed_writers.write(root, Path(sys.argv[2]), killed_writers.promote, int(sys.argv[3]))
    os._exit(1)
