"""The public interface of the registry: names, versions and aliases; store models and return them verified."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError, PromotionRefused, UnknownModel
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.bucket import BucketClient
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.location import ObjectUrl, location
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.archive import BundleImport, Exported, copy_history, export_bundle, opened_bundle, refuse_moves
from rankmill.registry.blob_store import LARGEST_BLOB, Format, Store
from rankmill.registry.commit_log import CommitLog, every_log
from rankmill.registry.model_state import State
from rankmill.registry.names import (
    LATEST,
    PRODUCTION,
    check_alias,
    check_name,
    default_folder,
    parse_reference,
)
from rankmill.registry.promotion import Expected, check_version, gate_in, lapsed, promote, rollback, unset
from rankmill.registry.retention import Collected, RetentionRules, collect
from rankmill.registry.stored_records import (
    AliasPolicy,
    Entry,
    GateRecord,
    Move,
    Protect,
    Register,
    Unset,
    first_fault,
    manifest_bytes,
)
from rankmill.registry.verification import VerifyReport, verify
from rankmill.registry.version import Version

__all__ = ["Registry", "Version"]


class Registry:
    """Versioned models in one folder or bucket, which the first write fills.  Readers take no lock and write nothing.

    ``root`` is the folder, or a URL such as ``s3://bucket/prefix``; None: RANKMILL_REGISTRY, else ``registry-data`` in
    the working directory.
    """

    protects_at_first: ClassVar[tuple[str, ...]] = (PRODUCTION,)
    """Aliases that a new registry protects."""

    def __init__(
        self,
        root: str | os.PathLike[str] | ObjectUrl | None = None,
        *,
        disk: Disk | None = None,
        bucket: BucketClient | None = None,
    ) -> None:
        self.root = default_folder() if root is None else location(root)
        self._store = Store(self.root, disk, bucket)

    def __repr__(self) -> str:
        return f"<Registry {self.root}>"

    def exists(self) -> bool:
        """Return whether the folder has a registry."""
        return self._store.exists()

    def prepare(self, protected: Iterable[str] | None = None) -> None:
        """Create the registry if it does not exist; an existing one keeps its protected aliases.

        The aliases ``protected`` (None: production) move only to versions that passed the gate, for every model.
        InputError if the folder has other files or an alias is invalid, OSError if the folder cannot be created or
        written to.
        """
        self._store.prepare(self.protects_at_first if protected is None else protected)

    def initialise(self, *, leave_open: bool = False, protect: Sequence[str] = ()) -> bool:
        """Create the registry and return whether it is new; test whether the place can keep one, also if it is there.

        ``protect`` names protected aliases besides production, ``leave_open`` leaves production open.

        Raises
        ------
        InputError
            The place has other files, an alias is invalid, or the existing registry protects other aliases.
        IntegrityError
            The existing registry is damaged or of another format.
        OSError
            The place is not writable, or cannot hold a registry.
        """
        storage, new = self._store.storage, not self.exists()
        wanted = Format.new(storage.kind, [*(() if leave_open else (PRODUCTION,)), *protect]).protected
        self.prepare(wanted)
        if (leave_open or protect) and self.protected != wanted:
            names = [", ".join(protected) or "nothing" for protected in (self.protected, wanted)]
            raise InputError(
                f"{self.root} is a registry already, created with protection of {names[0]}, not {names[1]}; "
                "to change it for one model use rankmill models alias NAME ALIAS --protect or --open"
            )
        storage.probe()
        return new

    def names(self) -> list[str]:
        """All models with at least one entry in their log, by name."""
        if not self._store.exists():
            return []
        return [log.name for log in every_log(self._store) if log.exists()]

    def register(
        self,
        name: str,
        model: bytes,
        *,
        manifest: Mapping[str, object],
        attachments: Mapping[str, bytes] | None = None,
        reason: str = "",
    ) -> Version:
        """Register ``model`` as the next version of ``name``.

        If the same bytes and facts exist already, return that version.

        Parameters
        ----------
        name
            1 to 64 of a-z 0-9 . _ - that begin with a letter or digit.
        model
            The bytes of a model file; they are not parsed.
        manifest
            JSON facts; see `rankmill.registry.stored_records.VersionManifest` for the required ones.
        attachments
            More bytes that belong to the version, by name (the rules are those for names of models).  They do not
            distinguish versions: those of the first registration are kept.
        reason
            One line for the log.

        Raises
        ------
        InputError
            The name or the manifest is invalid.
        ConflictError
            Concurrent writers got in first each time.
        """
        log = CommitLog(self._store, check_name(name))
        facts, further = manifest_bytes(manifest), dict(attachments or {})
        _check_blobs(facts, further)
        self.prepare()
        self._store.storage.sweep()
        keys = sorted(further)

        blobs = [model, facts, *(further[key] for key in keys)]
        with log.blobs.keep(blobs) as (sha256, manifest_sha256, *others):
            attached = dict(zip(keys, others, strict=True))

            def decide(state: State) -> Register | int:
                if (known := state.entry_of(sha256, manifest_sha256)) is not None:
                    return known
                optional = {"attachments": attached} if attached else {}  # unset fields are not written to the entry
                return Register(
                    op="register",
                    version=len(state.versions) + 1,
                    model=sha256,
                    size=len(model),
                    manifest=manifest_sha256,
                    **optional,
                )

            entry = log.commit(decide, reason)
        assert isinstance(entry.change, Register)  # noqa: S101 (for the type checker)
        state, number = log.state(), entry.change.version
        return Version(name, number, state.versions[number], state, log)

    def versions(self, name: str) -> list[Version]:
        """All versions of ``name``, oldest first; UnknownModel if there is no such model."""
        log = self._known(name)
        state = log.state()
        return [Version(name, number, row, state, log) for number, row in state.versions.items()]

    def state(self, name: str) -> State:
        """Return the current state of ``name``, computed from its log; UnknownModel if the model does not exist."""
        return self._known(name).state()

    def log(self, name: str) -> list[Entry]:
        """Return the log entries of ``name``, oldest first, whose chain was checked; UnknownModel if there is none."""
        return self.state(name).entries

    def resolve(self, reference: str, *, bare: Literal["production", "latest"] = PRODUCTION) -> Version:
        """Return the version that ``NAME``, ``NAME@7``, ``NAME@production`` or ``NAME@latest`` refers to now.

        ``bare`` is the meaning of a name alone: ``production`` to use a model, ``latest`` to look at it.

        Raises
        ------
        InvalidName
            The text is not a valid reference.
        UnknownModel
            There is no such model, version or alias.
        """
        name, selector = parse_reference(reference)
        selector = bare if selector is None else selector
        log = self._known(name)
        state = log.state()
        if isinstance(selector, int):
            number = selector
        elif selector == LATEST:
            number = len(state.versions)
        elif (target := state.target(selector)) is not None:
            number = target
        elif selector == PRODUCTION:
            newest = f"{name}@{len(state.versions)}"
            cure = f"name a version ({name}@latest), or promote one: rankmill models gate {newest} --on DATASET,"
            raise UnknownModel(f"{name} has no production version yet; {cure} then rankmill models promote {newest}")
        else:
            raise UnknownModel.unknown(f"alias of {name}", selector, [*state.set_aliases(), LATEST])
        check_version(name, state, number)
        return Version(name, number, state.versions[number], state, log)

    def promote(
        self,
        name: str,
        version: int,
        *,
        alias: str = PRODUCTION,
        expect: Expected = ...,
        reason: str = "",
        force: bool = False,
    ) -> Entry:
        """Point ``alias`` at ``version``, atomically; nothing is written if it points there already.

        Parameters
        ----------
        name, version
            A registered version; its file is checked first, so that no alias points to a damaged one.
        alias
            Any name but ``latest``; set by its first promotion.
        expect
            The version that the alias must point to now (None: not set); by default the last writer wins.
        reason
            One line for the log.
        force
            Move a protected alias without a passed gate; the log records the failed condition.

        Raises
        ------
        UnknownModel
            There is no such model or version, or its bytes were swept.
        ConflictError
            The alias does not point to the expected version.
        PromotionRefused
            The alias is protected, and this version has not passed the gate against the current version of the alias.
        IntegrityError
            The version's bytes are damaged.
        """
        check_alias(alias)
        log = self._known(name)

        def report_of(gate: GateRecord) -> dict[str, Any]:
            return log.blobs.read_json(gate.report)

        def decide(state: State) -> Move | int:
            policy = self.policy(state, alias)
            return _checked(
                log,
                state,
                promote(name, state, alias, version, expect, policy=policy, report_of=report_of, force=force),
            )

        return log.commit(decide, reason)

    def rollback(
        self,
        name: str,
        *,
        alias: str = PRODUCTION,
        to: int | None = None,
        expect: Expected = ...,
        reason: str = "",
    ) -> Entry:
        """Point ``alias`` at the version before again (or at ``to``, an earlier target); this adds a log entry.

        Versions that were rolled back from are passed over, and a second rollback needs ``to``.  No gate is needed.  Of
        two concurrent rollbacks one gets a ConflictError, since together they would go back two steps.  Parameters and
        errors are those of `promote`.
        """
        check_alias(alias)
        log, seen = self._known(name), expect

        def decide(state: State) -> Move | int:
            nonlocal seen
            seen = state.target(alias) if seen is ... else seen
            return _checked(log, state, rollback(name, state, alias, to, seen))

        return log.commit(decide, reason)

    def unset(self, name: str, alias: str, *, expect: Expected = ..., reason: str = "") -> Entry:
        """Remove ``alias``; nothing is written if it is not set.  Errors are those of `promote`."""
        check_alias(alias)

        def decide(state: State) -> Unset | int:
            return unset(name, state, alias, expect)

        return self._known(name).commit(decide, reason)

    def protect(self, name: str, alias: str, policy: AliasPolicy | None, *, reason: str = "") -> Entry | None:
        """Protect ``alias`` with ``policy``, or open it (None).  Return the log entry, or None if nothing changed."""
        check_alias(alias)
        log = self._known(name)
        state = log.state()
        if self.policy(state, alias) == policy and log.flush(state):
            return None
        return log.commit(lambda _: Protect(op="protect", alias=alias, policy=policy), reason)

    @property
    def protected(self) -> tuple[str, ...]:
        """The aliases that are protected for every model without a policy of its own."""
        return self._store.protected

    def policy(self, state: State, alias: str) -> AliasPolicy | None:
        """Return the policy of ``alias``; None if it is open."""
        if alias in state.policies:
            return state.policies[alias]
        return AliasPolicy() if alias in self._store.protected else None

    def record_gate(
        self, name: str, outcome: Mapping[str, Any], report: Mapping[str, object], *, reason: str = ""
    ) -> Entry:
        """Record the ``outcome`` of the gate and its ``report``; a repeated call writes nothing.

        ``outcome`` has the fields of `GateRecord`, but for the digests of the report and the model.

        Raises
        ------
        InputError
            The report is not JSON, or the outcome is invalid, such as a margin below 0.
        UnknownModel
            There is no such model or version.
        """
        alias, version = check_alias(outcome["alias"]), outcome["version"]
        try:
            data = canonical_json(dict(report))
        except (TypeError, ValueError) as error:
            raise InputError(f"report of the gate: expected JSON values: {error}") from error
        log = self._known(name)
        state = log.state()
        check_version(name, state, version)
        if outcome["baseline"] is not None:
            check_version(name, state, outcome["baseline"])
        try:
            gate = GateRecord(op="gate", report=digest_of(data), model=state.versions[version].model, **outcome)
        except ValidationError as error:
            raise InputError(f"result of the gate: {first_fault(error)}") from None

        def decide(state: State) -> GateRecord | int:
            before = state.gates.get(version, {}).get(alias)
            if before is None or before.change != gate or lapsed(state, alias, before):
                return gate
            return before.number

        with log.blobs.keep([data]):
            return log.commit(decide, reason)

    def gate_report(self, name: str, entry: int) -> dict[str, Any]:
        """Return the report that entry ``entry`` of the log recorded, checked against its digest."""
        log = self._known(name)
        return log.blobs.read_json(gate_in(log.state().entries[entry - 1]).report)

    def export(self, reference: str, path: Path | str, *, overwrite: bool = False) -> Exported:
        """Export a model (``NAME``, with its history) or one version (``NAME@7``) to the tar file ``path``.

        ``NAME@production`` is the version of an alias.

        It is written atomically, and the same content gives the same bytes.

        Raises
        ------
        InputError
            The file exists and ``overwrite`` is false, or its folder does not exist.
        UnknownModel
            There is no such model or version, or its bytes were swept.
        IntegrityError
            A file of it is damaged or missing.
        """
        name, selector = parse_reference(reference)
        number = None if selector is None else self.resolve(reference, bare="latest").number
        return export_bundle(self._known(name), number, Path(path), overwrite=overwrite)

    def import_(
        self, path: Path | str, *, name: str | None = None, reason: str = "", move_aliases: bool = False
    ) -> BundleImport:
        """Import the bundle at ``path`` as the model ``name`` (None: its original name).

        A whole history keeps every entry; if the model exists, only new entries are added.  With ``move_aliases`` these
        may move aliases that are protected here.  A single version becomes the next version of the model, and no alias
        moves; ``reason`` goes to the log, by default where it comes from.  The whole bundle is checked before anything
        is written, and what is refused creates no registry.

        Raises
        ------
        InputError
            The file does not exist, or the name is invalid.
        IntegrityError
            The bundle is damaged.
        ConflictError
            The model of that name has another history.
        PromotionRefused
            Its new entries move or open an alias that is protected here, without ``move_aliases``.
        """
        if name is not None:
            check_name(name)
        with opened_bundle(Path(path)) as source:
            state, target = source.state(), CommitLog(self._store, name or source.name)
            here = target.state() if self.exists() else State()
            if here.head and state.head == len(state.versions) == 1 and here.entries[0] != state.entries[0]:
                row, origin = state.versions[1], state.entries[0].reason
                version = self.register(
                    target.name,
                    source.blobs.read(row.model, row.size),
                    manifest=source.blobs.read_json(row.manifest),
                    attachments={key: source.blobs.read(sha256) for key, sha256 in row.attachments.items()},
                    reason=reason or f"imported: {origin}",
                )
                added = int(version.row.entry > here.head)
                return BundleImport(target.name, added, here.head + added, version.number)
            try:
                if not (move_aliases or self.exists()):  # refuse before one is created
                    refuse_moves(source.name, target.name, state.entries, here, self.protects_at_first)
                self.prepare()
                self._store.storage.sweep()
                return copy_history(source, target, move_aliases=move_aliases)
            except (ConflictError, PromotionRefused) as error:
                raise type(error)(f"{path}: {error}") from None

    def copy(self, to: Registry, names: Sequence[str] | None = None) -> list[BundleImport]:
        """Copy models (None: all) with their whole history to another registry.

        It is on a disk or in a bucket. Repeat the call to resume.

        A new registry gets the protected aliases of this one, and all aliases move as here.  What is there already is
        not copied again.

        Raises
        ------
        UnknownModel
            There is no such model.
        IntegrityError
            A file of it is damaged.
        ConflictError
            The other registry has a model of that name with another history.
        """
        logs = [self._known(name) for name in (self.names() if names is None else names)]
        if not (report := verify(self._store, [log.name for log in logs])).ok:
            raise IntegrityError(report.findings[0])
        if logs:
            to.prepare(self.protected)
        return [copy_history(log, CommitLog(to._store, log.name), move_aliases=True) for log in logs]

    def verify(self, name: str | None = None) -> VerifyReport:
        """Check all files of one model or of all, and report problems instead of raising."""
        if name is not None:
            self._known(name)
        return verify(self._store, self.names() if name is None else [name])

    def gc(self, name: str | None = None, *, rules: RetentionRules | None = None, dry_run: bool = False) -> Collected:
        """Mark and sweep versions of one model or of all, and delete unused blobs.

        See `rankmill.registry.retention`.

        Raises
        ------
        InputError
            There is no registry, or no such model.
        IntegrityError
            A log cannot be read completely, or the registry has another format; nothing was deleted of that model.
        """
        if not self.exists():
            raise InputError(f"{self.root}: no registry here; create one with rankmill models init")
        if name is not None:
            self._known(name)
        return collect(self._store, name, rules or RetentionRules(), dry_run=dry_run)

    def _known(self, name: str) -> CommitLog:
        log = CommitLog(self._store, check_name(name))
        if not self._store.exists() or not log.exists():
            cure = f"no model is registered in {self.root} yet (rankmill train DATASET --name NAME)"
            if not self.exists():
                cure = f"there is no registry in {self.root} (set its folder with --registry or RANKMILL_REGISTRY)"
            raise UnknownModel.unknown("model", name, self.names(), cure)
        return log


def _checked(log: CommitLog, state: State, move: Move | int) -> Move | int:
    """Return ``move`` after reading what the alias will point to; IntegrityError if it is damaged."""
    if isinstance(move, Move):
        target = Version(log.name, move.version, state.versions[move.version], state, log)
        target.read()
        target.manifest  # noqa: B018 (reading it checks it)
    return move


def _check_blobs(manifest: bytes, attachments: Mapping[str, bytes]) -> None:
    """Raise InputError if the name of an attachment is invalid, or a file is too large."""
    for key in attachments:
        check_name(key)
    for what, data in {"manifest": manifest, **attachments}.items():
        if len(data) > LARGEST_BLOB:
            raise InputError(f"{what}: expected at most {LARGEST_BLOB} bytes, found {len(data)}")
