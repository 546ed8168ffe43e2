"""``python -m rankmill`` is the ``rankmill`` command."""

from rankmill.cli import main

if __name__ == "__main__":
    main()
