"""The registry as the rest of the house sees it: names, versions, aliases; bytes in, checked bytes out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from registry.disk import Disk
from registry.errors import IntegrityError, UnknownModel
from registry.log import Entry, Log, Move, Register, State
from registry.manifest import manifest_bytes
from registry.names import LATEST, NAME, PRODUCTION, Reference, check_alias, check_name
from registry.promotion import Expected, check_version, promote, rollback
from registry.store import Store
from registry.verify import VerifyReport, verify


@dataclass(frozen=True)
class Version:
    """One registered model: what the log says of it, and the way to its bytes.  The aliases are those of that moment."""

    name: str
    number: int
    sha256: str
    size: int
    manifest_sha256: str
    registered: Entry = field(repr=False)
    moves: Mapping[str, Entry] = field(repr=False, compare=False)
    """For each alias that means this version, by name, the entry that set it."""
    store: Store = field(repr=False, compare=False)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases that mean this version, by name."""
        return tuple(self.moves)

    @property
    def model_path(self) -> Path:
        """Where the model's bytes lie: to look at, never to write to; `read` checks them."""
        return self.store.blob_path(self.sha256)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The facts that were registered with the model, checked against their digest."""
        facts: dict[str, Any] = json.loads(self.store.read_blob(self.manifest_sha256))
        return facts

    def read(self) -> bytes:
        """Return the model's bytes; IntegrityError if they are missing or do not have the registered digest."""
        data = self.store.read_blob(self.sha256)
        if len(data) != self.size:
            raise IntegrityError(f"{self.model_path}: expected {self.size} bytes, found {len(data)}")
        return data

    def to_json(self) -> dict[str, Any]:
        """Everything that is known of the version, as JSON values."""
        return {
            "name": self.name,
            "version": self.number,
            "sha256": self.sha256,
            "size": self.size,
            "model_path": str(self.model_path),
            "aliases": list(self.aliases),
            "registered": {"time": self.registered.time, "actor": self.registered.actor, "host": self.registered.host},
            "reason": self.registered.reason,
            "manifest": self.manifest,
        }

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"


class Registry:
    """Versioned models under one folder, which is made by the first write.  Readers take no lock and write nothing."""

    def __init__(self, root: Path | str, *, disk: Disk | None = None) -> None:
        self.root = Path(root)
        self._store = Store(self.root, disk)

    def exists(self) -> bool:
        """Tell whether there is a registry in the folder."""
        return self._store.exists()

    def prepare(self, protected: Iterable[str] = (PRODUCTION,)) -> None:
        """Make the registry if it is not there; one that is keeps the aliases that it protects.

        Parameters
        ----------
        protected
            The aliases to which only a passed gate promotes, for every model; none for an open registry.

        Raises
        ------
        InputError
            The folder holds something else, or an alias may not be called so.
        OSError
            The folder cannot be made or written to.
        """
        self._store.prepare(protected)

    def names(self) -> list[str]:
        """All models with at least one entry in their log, by name."""
        if not self._store.exists():
            return []
        found = [name for name in self._store.disk.names(self.root / "models") if NAME.fullmatch(name)]
        return [name for name in found if Log(self._store, name).listed()]

    def register(self, name: str, model: bytes, *, manifest: Mapping[str, object], reason: str = "") -> Version:
        """Keep ``model`` as the next version of ``name``; the same bytes and manifest again return what is there.

        Parameters
        ----------
        name
            1 to 64 of a-z 0-9 . _ - that begin with a letter or digit.
        model
            The bytes of a model file; they are not looked into.
        manifest
            JSON facts; see `registry.manifest.Manifest` for those that must be there.
        reason
            One line for the log.

        Raises
        ------
        InputError
            The name or the manifest breaks the rules.
        ConflictError
            Other writers were faster each time.
        """
        log = Log(self._store, check_name(name))
        facts = manifest_bytes(manifest)
        self.prepare()
        self._store.sweep()
        sha256, manifest_sha256 = self._store.put_blob(model), self._store.put_blob(facts)

        def decide(state: State) -> Register | Entry:
            for change, entry in state.versions.values():
                if (change.model, change.manifest) == (sha256, manifest_sha256):
                    return entry
            number = len(state.versions) + 1
            return Register(op="register", version=number, model=sha256, size=len(model), manifest=manifest_sha256)

        entry = log.commit(decide, reason)
        return self._version(name, log.state(), entry.change.version)

    def versions(self, name: str) -> list[Version]:
        """All versions of ``name``, oldest first; UnknownModel if there is none of that name."""
        state = self._known(name).state()
        return [self._version(name, state, number) for number in state.versions]

    def log(self, name: str) -> list[Entry]:
        """Everything that ever happened to ``name``, oldest first, chain checked."""
        return self._known(name).advance(State())

    def resolve(self, reference: str, *, bare: Literal["production", "latest"]) -> Version:
        """Find the version that ``NAME``, ``NAME@7``, ``NAME@production`` or ``NAME@latest`` means now.

        ``bare`` says what a name alone means: ``production`` where a model is used, ``latest`` where it is looked at.

        Raises
        ------
        InvalidName
            The text is no reference.
        UnknownModel
            There is no such model, version or alias.
        """
        asked = Reference.parse(reference)
        name, selector = asked.name, bare if asked.selector is None else asked.selector
        state = self._known(name).state()
        if isinstance(selector, int):
            number = selector
        elif selector == LATEST:
            number = len(state.versions)
        elif (target := state.target(selector)) is not None:
            number = target
        elif selector == PRODUCTION:
            cure = f"promote one (rankmill models promote {name}@{len(state.versions)}) or name it ({name}@latest)"
            raise UnknownModel(f"{name} has no production version yet; {cure}")
        else:
            raise UnknownModel.unknown(f"alias of {name}", selector, [*state.moves, LATEST])
        return self._version(name, state, number)

    def promote(
        self, name: str, version: int, *, alias: str = PRODUCTION, expect: Expected = ..., reason: str = ""
    ) -> Entry:
        """Let ``alias`` mean ``version``, in one step; nothing is written if it does already.

        Parameters
        ----------
        name, version
            A registered version; its bytes are checked first, so that no alias ever means a damaged one.
        alias
            Any name but ``latest``; set by its first promotion.
        expect
            What the alias must mean at that moment (None: nothing yet); left out, the last writer wins.
        reason
            One line for the log.

        Raises
        ------
        UnknownModel
            There is no such model or version.
        ConflictError
            The alias does not mean what was expected.
        IntegrityError
            The version's bytes are damaged.
        """
        check_alias(alias)

        def decide(state: State) -> Move | Entry:
            move = promote(name, state, alias, version, expect)
            self._check_target(name, state, move)
            return move

        return self._known(name).commit(decide, reason)

    def rollback(
        self,
        name: str,
        *,
        alias: str = PRODUCTION,
        to: int | None = None,
        expect: Expected = ...,
        reason: str = "",
    ) -> Entry:
        """Let ``alias`` mean again what it last meant before (or ``to``, which it once meant); a new entry of the log.

        Of two that roll back at the same moment one gets a ConflictError: they would have gone back two steps.
        Parameters and errors are those of `promote`.
        """
        check_alias(alias)
        seen = expect

        def decide(state: State) -> Move | Entry:
            nonlocal seen
            seen = state.target(alias) if seen is ... else seen
            move = rollback(name, state, alias, to, seen)
            self._check_target(name, state, move)
            return move

        return self._known(name).commit(decide, reason)

    def verify(self, name: str | None = None) -> VerifyReport:
        """Read everything, of one model or of all, and report what is wrong instead of raising."""
        if name is not None:
            self._known(name)
        return verify(self._store, self.names() if name is None else [name])

    def _known(self, name: str) -> Log:
        log = Log(self._store, check_name(name))
        if not self._store.exists() or not log.listed():
            cure = f"no model is registered in {self.root} yet (rankmill train DATASET --name NAME)"
            raise UnknownModel.unknown("model", name, self.names(), cure)
        return log

    def _version(self, name: str, state: State, number: int) -> Version:
        check_version(name, state, number)
        change, entry = state.versions[number]
        moves = {alias: state.moves[alias][-1] for alias in state.aliases(number)}
        return Version(name, number, change.model, change.size, change.manifest, entry, moves, self._store)

    def _check_target(self, name: str, state: State, move: Move | Entry) -> None:
        if isinstance(move, Move):
            target = self._version(name, state, move.version)
            target.read()
            target.manifest  # noqa: B018 (reading it checks it)
