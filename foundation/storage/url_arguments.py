"""URLs as arguments: a command that takes local paths gets local names of the objects.

`local_copies` has these names.

What is printed, and errors, have the URLs again.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import is_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from rankmill.foundation.errors import InputError, RankmillError
from rankmill.foundation.storage.local_copies import LocalCopies
from rankmill.foundation.storage.location import ObjectUrl, location, meant_as_url

CACHE_VARIABLE = "RANKMILL_CACHE"
OUTPUTS = frozenset({"out", "per_query", "html", "clicks"})
"""The parameters that name a file or folder to write."""
LOCAL = frozenset({"config", "work", "of", "checkpoint", "cache"})
"""The parameters whose files must be on a local disk."""
TEXTS = frozenset({"reason", "registry", "to"})
"""The parameters that may have the form of a URL, and name no file."""

F = TypeVar("F", bound=Callable[..., Any])


def url_of(value: object) -> ObjectUrl | None:
    """Return the URL that ``value``, an argument for a path, stands for; None if it stands for something else."""
    if not isinstance(value, str | os.PathLike) or not (url := meant_as_url(Path(os.fsdecode(value)))):
        return None
    found = location(url)
    return found if isinstance(found, ObjectUrl) else None


@contextmanager
def local_paths(
    given: Mapping[str, Any], cache_folder: Path | None = None, *, updated: str = "", shown: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the arguments ``given`` with a local name for each URL; afterwards the outputs among them are put.

    Parameters
    ----------
    cache_folder
        Folder that keeps fetched objects; None: RANKMILL_CACHE, or no longer than this.
    updated
        The parameter that names a folder to change.
    shown
        Whether to print URLs instead of local names; what is printed on stdout appears when all is put.

    Raises
    ------
    InputError
        A URL is given for what must be local; there is no such object, or what exists may not be replaced.
    StoreError
        A request failed.
    """
    named = {name for name, value in given.items() if name not in TEXTS and any(map(url_of, _values(value)))}
    if not named:
        yield dict(given)
        return
    for name in sorted(named & LOCAL):
        url = next(filter(None, map(url_of, _values(given[name]))))
        raise InputError(f"{name}: expected a local path, found {url}; it cannot be in a bucket")
    copies = LocalCopies(cache_in(cache_folder))
    local = dict(given)

    def translated(name: str, value: Any) -> Any:
        url = url_of(value)
        if url is None:
            return value
        if name in OUTPUTS or name == updated:
            place = copies.write(url, overwrite=given.get("overwrite"), update=name == updated)
        else:
            place = copies.read(url)
        return str(place) if isinstance(value, str) else place

    try:
        with ExitStack() as stack:
            if shown:
                stack.enter_context(_urls_shown(copies))
            for name in sorted(named, key=lambda name: name in OUTPUTS):  # what is read first
                value = given[name]
                several = isinstance(value, list | tuple)
                local[name] = [translated(name, each) for each in value] if several else translated(name, value)
            try:
                yield local
            except Exception:
                with suppress(OSError, RankmillError):  # the first error is what matters
                    copies.put(failed=True)
                raise
            copies.put()
    except Exception as error:
        with_urls(error, copies)
        raise
    finally:
        copies.close()


def takes_urls(function: F) -> F:
    """Let the paths that ``function`` is given be URLs; its report, if it has one, names the URL."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        by_name = dict(zip(names, args, strict=False)) | given
        if len(args) > len(names) or not any(any(map(url_of, _values(value))) for value in by_name.values()):
            return function(*args, **given)
        with local_paths({"overwrite": False} | by_name) as local:
            if "overwrite" not in by_name:
                del local["overwrite"]
            made = function(*[local.pop(name) for name in names[: len(args)]], **local)
        out = by_name.get("out")
        if is_dataclass(made) and isinstance(getattr(made, "out", None), str) and url_of(out):
            return replace(cast("Any", made), out=str(url_of(out)))
        return made

    return cast("F", called)


def fetched(path: str | os.PathLike[str]) -> Path:
    """Return ``path``; if it is a URL, the local name of its objects, which stay until the process ends."""
    url = url_of(path)
    if url is None:
        return Path(path)
    _of_process().forget_clients()  # the settings in the environment may have changed
    return _of_process().read(url)


@cache
def _of_process() -> LocalCopies:
    copies = LocalCopies(cache_in(None))
    atexit.register(copies.close)
    return copies


def cache_in(folder: Path | None) -> Path | None:
    """Return the folder for fetched objects: ``folder``, else RANKMILL_CACHE, else None; InputError if it is a URL."""
    given = os.environ.get(CACHE_VARIABLE)
    found = folder if folder is not None or not given else Path(given)
    if url := url_of(found):
        raise InputError(f"--cache (or {CACHE_VARIABLE}): expected a local path, found {url}")
    return found


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def with_urls(error: BaseException, copies: LocalCopies) -> None:
    """Name URLs instead of local names in ``error``."""
    error.args = tuple(copies.named(value) if isinstance(value, str) else value for value in error.args)
    for name, value in list(vars(error).items()):
        if isinstance(value, str | Path):
            setattr(error, name, copies.named(str(value)))
    if isinstance(error, OSError):
        for name in ("filename", "filename2"):
            value = getattr(error, name)
            if isinstance(value, str | Path):
                setattr(error, name, copies.named(str(value)))
    if notes := getattr(error, "__notes__", None):
        notes[:] = map(copies.named, notes)


class _Named:
    """A stream that writes URLs instead of local names; what is ``held`` is written by `release`."""

    def __init__(self, stream: TextIO, copies: LocalCopies, *, held: bool) -> None:
        self._stream, self._copies, self._held, self._kept = stream, copies, held, [""]

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # Typer tries bytes to find out whether a stream takes them
            raise TypeError("expected text")
        if self._held and self._copies.writes:
            self._kept.append(text)
        else:
            self._stream.write(self._copies.named(text))
        return len(text)

    def release(self) -> None:
        self._stream.write(self._copies.named("".join(self._kept)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _urls_shown(copies: LocalCopies) -> Iterator[None]:
    out, err = _Named(sys.stdout, copies, held=True), _Named(sys.stderr, copies, held=False)
    with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
        yield
    out.release()
