"""What OUT may be: nothing that is lost by it, nothing that is not ours, and what it replaces only when told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankmill.foundation.errors import ConflictError, InputError
from rankmill.scorer import ranked_file
from rankmill.scorer.ranked_file import counts_belong_to, grades_path, is_ranked_folder
from rankmill.scorer.replacing import restore_replaced


def check_apart(target: Path, candidates: Sequence[Path]) -> None:
    """Refuse an ``OUT`` whose replacement would destroy what it was made from."""
    places = [target.resolve()]
    if ranked_file.checked_suffix(target):
        places.append(grades_path(target).resolve())
    for path in candidates:
        found = path.resolve()
        if any(found.is_relative_to(place) for place in places):
            raise InputError(
                f"{target}: {path} is a file of candidates, and would be lost; choose another name for OUT"
            )


def check_target(target: Path, *, overwrite: bool, several: bool = False) -> None:
    """Refuse an ``OUT`` that exists and may not be replaced, or that is to be one file where ``several`` models rank.

    What a killed run left aside of an older folder is brought back first.
    """
    single = bool(ranked_file.checked_suffix(target))
    if single and several:
        raise InputError(f"{target}: is one file, several models need a folder; each gets a folder of its own in it")
    if not single:
        restore_replaced(target)
    if target.exists():
        if not overwrite:
            raise InputError(f"{target}: exists already; choose another name, or replace it with --overwrite")
        if single and target.is_dir():
            raise InputError(f"{target}: is a folder, a file was asked for; remove it or choose another name")
        if not single and not is_ranked_folder(target):
            raise InputError(f"{target}: is not a folder of ranked lists, so it is not replaced; choose another name")
    if single:
        _check_grades(grades_path(target), target, overwrite=overwrite)


def check_unchanged(target: Path, *, overwrite: bool) -> None:
    """Refuse, right before it is published, an ``OUT`` that was not there when the run began and is not to be replaced."""
    if not overwrite and target.exists():
        raise ConflictError(
            f"{target}: another run has written it since this one began; choose another name, or replace it with --overwrite"
        )


def _check_grades(grades: Path, target: Path, *, overwrite: bool) -> None:
    """Refuse what is in the place of the side table of ``target``: it would be replaced, or taken for that table."""
    if not os.path.lexists(grades):
        return
    if counts_belong_to(grades) is None:
        raise InputError(
            f"{grades}: has the name of the grade counts of {target.name}, but is no such table, so it is not "
            "replaced; choose another name"
        )
    if not overwrite:
        raise InputError(
            f"{grades}: grade counts for {target.name} exist already; choose another name, or replace them with --overwrite"
        )
