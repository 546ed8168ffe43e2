"""``rankmill models init|gc|fsck|export|import``: make a registry and keep it in order."""

from __future__ import annotations

import typer

app = typer.Typer()
