"""``python -m rankmill`` is the ``rankmill`` command."""

from rankmill.foundation.interrupts import end_at_once_on_signals


def main() -> None:
    """Run the command line; signals are heeded while it is still being imported."""
    end_at_once_on_signals()
    from rankmill import cli

    cli.main()


if __name__ == "__main__":
    main()
