"""Compile the kernels that come with a package: ``python -m rankmill.shipped``, for ``make wheel`` and the image.

It compiles every kernel for the CPU level that `rankmill.foundation.kernels.compiling` names. The package must be newly
unpacked or installed; the machine code is moved into a folder of it.  Sources, Python, Numba, llvmlite and NumPy decide
later whether it is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rankmill


def compile_shipped(package: Path) -> list[Path]:
    """Compile every kernel of the package in ``package`` with this interpreter, and return the files that come with it.

    Raises
    ------
    RuntimeError
        Numba is linked with Intel's SVML, so that the kernels would need it everywhere.
    """
    from numba.core import config

    from rankmill.foundation.kernels.compiling import LEVEL

    if vars(config)["USING_SVML"]:
        raise RuntimeError(
            "kernels that are to be shipped are compiled without Intel's SVML: uninstall intel-cmplr-lib-rt"
        )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTHON"))}
    settings = {"NUMBA_CPU_NAME": LEVEL, "NUMBA_CPU_FEATURES": "", "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1"}
    command = [sys.executable, "-m", "rankmill.warm"]  # finds the package in its own folder first
    subprocess.run(command, env=kept | settings, cwd=package.parent, check=True)  # noqa: S603 - our own command
    return collect(package)


def collect(package: Path) -> list[Path]:
    """Move what has been compiled beside the sources into the folder of the shipped kernels, and return its files."""
    from rankmill.foundation.kernels.compiling import SHIPPED, TOOLS

    shipped = package / SHIPPED.parent.name / SHIPPED.name
    shutil.rmtree(shipped.parent, ignore_errors=True)
    shipped.mkdir(parents=True)
    for code in sorted(package.rglob(f"__pycache__/*.{TOOLS}.*.nbc")):
        modules = code.parents[1].relative_to(package).parts
        code.replace(shipped / ".".join([*modules, code.name.replace(f".{TOOLS}.", ".")]))
    for lock in package.rglob("__pycache__/compiling.lock"):
        lock.unlink()
    return sorted(shipped.iterdir())


def main() -> None:
    """Compile the kernels of this package and print how many there are."""
    files = compile_shipped(Path(rankmill.__path__[0]))
    size = sum(file.stat().st_size for file in files)
    sys.stdout.write(f"{len(files)} files, {size / 1e6:.1f} MB, in {files[0].parent}\n")


if __name__ == "__main__":
    main()
