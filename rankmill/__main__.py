"""``python -m rankmill`` is the ``rankmill`` command."""

import gc
import sys

from rankmill.foundation.interrupts import end_at_once_on_signals

_OBJECTS = 400_000  # more than all imports make


class _Spared:
    """Hides what PyArrow (pandas) and Numba (cffi, SciPy) import where it is installed: no command uses it."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name in {"cffi", "pandas", "scipy"}:
            raise ModuleNotFoundError(f"commands do without {name}", name=name)


def _let_imports_be() -> None:
    """Collect garbage less often.

    Imports create thousands of objects that all stay; collecting takes a sixth of a short command.
    """
    usual = gc.get_threshold()

    def go_on_as_usual(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.set_threshold(*usual)
            gc.callbacks.remove(go_on_as_usual)

    gc.callbacks.append(go_on_as_usual)
    gc.set_threshold(_OBJECTS, *usual[1:])


def main() -> None:
    """Run the command line; signals are heeded while it is still being imported."""
    end_at_once_on_signals()
    _let_imports_be()
    sys.meta_path.insert(0, _Spared)
    from rankmill import cli

    cli.main()


if __name__ == "__main__":
    main()
