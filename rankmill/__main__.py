"""``python -m rankmill`` is the ``rankmill`` command."""

import sys

from rankmill.foundation.interrupts import end_at_once_on_signals


class _Spared:
    """Hides what PyArrow (pandas) and Numba (cffi, SciPy) import at their first use where it is installed: no command uses it."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name in {"cffi", "pandas", "scipy"}:
            raise ModuleNotFoundError(f"commands do without {name}", name=name)


def main() -> None:
    """Run the command line; signals are heeded while it is still being imported."""
    end_at_once_on_signals()
    sys.meta_path.insert(0, _Spared)
    from rankmill import cli

    cli.main()


if __name__ == "__main__":
    main()
