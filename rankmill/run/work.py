"""State that all stages of a run share: configuration, work folder, registry, digests of files, and facts so far."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.config_file import read_config
from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.local_copies import LocalCopies, object_behind
from rankmill.foundation.storage.publish import file_digest, write_atomically
from rankmill.foundation.storage.url_arguments import cache_in, url_of, with_urls
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.read.files import find_files
from rankmill.registry import Registry, Version
from rankmill.run import CACHE, STAGES
from rankmill.run.stage_choice import STAGE_NAMES
from rankmill.run.stage_facts import RunFacts
from rankmill.scorer.models.model import Model
from rankmill.scorer.models.model_service import model_of

if TYPE_CHECKING:
    from datetime import date

    from rankmill.foundation.storage.location import Location

DATE = "{date}"


class Work:
    """The work folder of a configuration, and the results of the stages so far.

    Parameters
    ----------
    file
        The configuration; relative paths in it start at its folder.
    registry
        Folder of the registry.
    until
        The last stage to execute.
    day
        The logical date, which replaces ``{date}`` in patterns.
    cache
        Folder that keeps fetched objects; None: RANKMILL_CACHE, else the folder ``cache`` of the work folder.

    Attributes
    ----------
    facts
        Facts of each completed stage.
    """

    def __init__(
        self,
        file: Path,
        registry: Location,
        *,
        until: str = STAGE_NAMES[-1],
        day: date | None = None,
        cache: Path | None = None,
    ) -> None:
        self.file, self.folder, self.config = file, file.parent, read_config(file)
        self.until, self.day = until, day
        self.path = self.folder / self.config.work
        self.registry = Registry(registry)
        self.digests = FileDigests(self.path / "digests.json")
        self.facts = RunFacts()
        self._cache = cache_in(cache)
        self._copies: list[LocalCopies] = []

    @property
    def copies(self) -> LocalCopies:
        """The objects of buckets that the run reads and writes.

        Without another cache they are kept in the work folder.
        """
        if not self._copies:
            self._copies.append(LocalCopies(self._cache or self.path / CACHE))
        return self._copies[0]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Fetch objects in this context; errors name their URLs.

        The cache in the work folder keeps those of the last run.
        """
        try:
            yield
        except BaseException as error:
            for copies in self._copies:
                with_urls(error, copies)
            raise
        else:
            for copies in self._copies if self._cache is None else ():
                copies.sweep()
        finally:
            for copies in self._copies:
                copies.close()
            self._copies.clear()

    @property
    def dataset_path(self) -> Path:
        """Path of the dataset."""
        return self.path / "dataset"

    @property
    def stages(self) -> Path:
        """Folder of the records of stages."""
        return self.path / STAGES

    def dated(self, key: str, text: str) -> str:
        """Return ``text`` with the logical date; InputError if it needs one that was not given."""
        if self.day is None and DATE in text:
            raise InputError(f"{key}: {DATE} needs a logical date; set it with --date")
        return text.replace(DATE, "" if self.day is None else self.day.isoformat())

    def expand(self, key: str, patterns: tuple[str, ...]) -> tuple[Path, ...]:
        """Return the files that ``patterns`` (names, folders, patterns and URLs of such) match, sorted by name.

        Raises
        ------
        InputError
            A pattern matches no file, or needs a date that was not given.
        """
        dated = [self.dated(key, pattern) for pattern in patterns]
        try:
            urls = {text: url for text in dated if (url := url_of(text)) is not None}
            return tuple(
                find_files([self.copies.read(urls[text]) if text in urls else text for text in dated], self.folder)
            )
        except InputError as error:
            raise InputError(f"{key}: {error}") from None

    def one_path(self, text: str) -> Path:
        """Return the file or folder ``text`` of the configuration.

        It is a path relative to its folder, or the local name of a URL.
        """
        url = url_of(text)
        return self.folder / text if url is None else self.copies.read(url)

    def named(self, path: Path) -> str:
        """Return ``path`` relative to the folder of the configuration if it is inside; the URL of an object."""
        if (behind := object_behind(path)) is not None:
            return str(behind.url)
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)

    def inside(self, path: Path) -> str:
        """Return ``path`` relative to the work folder if it is inside, for records."""
        return path.relative_to(self.path).as_posix() if path.is_relative_to(self.path) else str(path)

    @property
    def candidate_digests(self) -> str:
        """The candidate with the digests of its model and manifest, as an input of stages."""
        return f"{self.candidate} {self.candidate.sha256} {self.candidate.manifest_sha256}"

    def changed_file(self, outputs: Mapping[str, str]) -> str | None:
        """Describe the first missing or changed file of ``outputs``; None if there is none.

        Paths are relative to the work folder.
        """
        for name, digest in outputs.items():
            path = self.path / name
            if not path.is_file():
                return f"{self.named(path)} is missing"
            if self.digests.of(path) != digest:
                return f"{self.named(path)} was changed"
        return None

    def dataset(self) -> Dataset:
        """Open the dataset."""
        return Dataset.open(self.dataset_path)

    @property
    def split(self) -> str | None:
        """The split to report on; None if there are only training queries."""
        return next(iter(self.dataset().manifest.unseen), None)

    @property
    def candidate(self) -> Version:
        """The version that the train stage registered."""
        if self.facts.train is None:
            raise InputError(f"{self.path}: no model was trained here yet")
        return self.registry.resolve(self.facts.train.model, bare="latest")

    @property
    def alias(self) -> str | None:
        """The alias of the gate; None without a gate."""
        return None if self.config.gate is None else self.config.gate.alias

    def model_of(self, version: Version) -> Model:
        """Read the model of ``version``; the last one is cached."""
        if self._model is None or self._model[0] != version.sha256:
            self._model = (version.sha256, model_of(version))
        return self._model[1]

    _model: tuple[str, Model] | None = None


Seen = tuple[int, int, int, str]
"""Size in bytes, modification time in nanoseconds, inode, sha256."""


class FileDigests:
    """A cache of digests of files, stored in ``path``.

    Parameters
    ----------
    path
        File of the cache; a missing or damaged one counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Seen] = _read(path)
        self._objects: set[str] = set()

    def of(self, path: Path) -> str:
        """Return the sha256 of ``path`` in hexadecimal; OSError if it cannot be read.

        An object of a bucket has changed if its ETag or its size has.
        """
        name, found = str(path.absolute()), path.stat()
        state = (found.st_size, found.st_mtime_ns, found.st_ino)
        if (behind := object_behind(path)) is not None:
            tag = sha256((behind.tag or behind.version).encode()).digest()
            name, state = str(behind.url), (behind.size, int.from_bytes(tag[:7]), 0)
            self._objects.add(name)
        known = self._known.get(name)
        if known is None or known[:3] != state:
            known = (*state, file_digest(path))
        self._known[name] = known
        return known[3]

    def keep(self) -> None:
        """Write the cache, without deleted files."""
        existing = {name: seen for name, seen in self._known.items() if name in self._objects or Path(name).exists()}
        data = json.dumps(existing, sort_keys=True, ensure_ascii=False, indent=0)
        write_atomically(self._path, data.encode("utf-8", "surrogateescape"))


def _read(path: Path) -> dict[str, Seen]:
    try:
        found = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
        return {
            str(name): (int(size), int(time), int(inode), str(digest))
            for name, (size, time, inode, digest) in found.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
