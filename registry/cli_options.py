"""Options and arguments that several of the registry's commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rankmill.registry as registries
from rankmill.foundation.command_line import AsJson
from rankmill.foundation.errors import InputError, InvalidName
from rankmill.foundation.options import option, options
from rankmill.foundation.storage.location import Location, location
from rankmill.registry.names import DEFAULT_FOLDER, FOLDER_VARIABLE

if TYPE_CHECKING:
    from rankmill.registry import Registry

__all__ = [
    "DEFAULT_FOLDER",
    "AsJson",
    "NewModel",
    "OtherRegistry",
    "PolicyTerms",
    "Reason",
    "RegistryFolder",
    "bare_name",
    "existing_registry",
]


def _place(value: str | Path) -> Location:
    place = location(value)
    if isinstance(place, Path) and place.is_file():
        raise typer.BadParameter(f"Directory {str(place)!r} is a file.")
    return place


if TYPE_CHECKING:
    RegistryFolder = Location
    OtherRegistry = Location
else:  # Typer takes no unions; the parser makes the value
    OtherRegistry = Annotated[
        Path,
        typer.Option(
            "--to", parser=_place, metavar="DIRECTORY|URL", help="The other registry; created if it is missing."
        ),
    ]
    RegistryFolder = Annotated[
        Path,
        typer.Option(
            "--registry",
            envvar=FOLDER_VARIABLE,
            parser=_place,
            metavar="DIRECTORY|URL",
            help="Folder of the registry, or a URL such as s3://bucket/prefix.",
        ),
    ]
NewModel = Annotated[str, typer.Option("--name", help="Register the model under this name.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason for the change, one line; kept in the log.")]


@options
class PolicyTerms:
    """What the gate must have checked before a protected alias moves."""

    metric: str | None = option(default=None, help="With --protect: the gate must use this metric.")
    margin: float | None = option(
        default=None, help="With --protect: the largest margin that the gate may use.", least=0
    )
    convention: str | None = option(
        default=None,
        help="With --protect: the gate must use these metric conventions; the digest is in the output of models gate "
        "--json.",
        metavar="SHA256",
    )
    dataset: str | None = option(
        default=None, help="With --protect: the gate must use the dataset with this digest.", metavar="SHA256"
    )
    never_worse: bool = option(
        default=False,
        help="With --protect: refuse significantly worse versions even if an option of the gate allowed them.",
    )


def bare_name(name: str) -> str:
    """Return ``name``; InvalidName if it includes a version."""
    if "@" in name:
        raise InvalidName(
            f"{name!r}: expected the name of a model without a version, such as {name.partition('@')[0]!r}"
        )
    return name


def existing_registry(folder: Location) -> Registry:
    """Return the registry in ``folder``; InputError if there is none, so that a misspelt folder is noticed."""
    store = registries.Registry(folder)
    if not store.exists():
        cure = "set its folder with --registry or RANKMILL_REGISTRY, or create it: rankmill train DATASET --name NAME"
        raise InputError(f"{folder}: no registry here; {cure}")
    return store
