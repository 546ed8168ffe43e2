"""What ``models list``, ``alias`` and ``show`` say of versions and aliases.

The registry requires few facts in a manifest and knows nothing about trees.  Facts that `rankmill train` adds are formatted if
present; unknown facts are shown as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rankmill.foundation.errors import InputError, RankmillError, UnknownModel
from rankmill.foundation.records import as_json
from rankmill.foundation.shown import shown_in_line
from rankmill.foundation.training_facts import (
    CIRCUMSTANCES,
    DEFAULTS,
    Circumstances,
    InputFiles,
    OtherModel,
    SeedsFacts,
    TrainingFacts,
    with_option_names,
)
from rankmill.registry.archive import ORIGIN, Origin
from rankmill.registry.names import check_alias
from rankmill.registry.rendering import (
    author_text,
    entry_json,
    entry_line,
    flat,
    lines_of,
    policy_text,
    size_text,
    time_text,
    verdict_of,
)
from rankmill.registry.stored_records import AliasPolicy, first_fault

if TYPE_CHECKING:
    from rankmill.registry.model_registry import Registry
    from rankmill.registry.model_state import State
    from rankmill.registry.stored_records import Entry
    from rankmill.registry.version import Version

LATEST_VERSIONS = 20


def chosen(state: State, tags: Mapping[str, str], *, every: bool) -> list[int]:
    """Return the versions to show: the last 20 and those with an alias, or all; with ``tags``, only those that have these tags."""
    numbers = [n for n in state.versions if tags.items() <= state.tags.get(n, {}).items()]
    if every:
        return numbers
    live = set(state.set_aliases().values())
    first = numbers[-LATEST_VERSIONS] if len(numbers) > LATEST_VERSIONS else 0
    return [n for n in numbers if n >= first or n in live]


def parse_tags(words: list[str]) -> dict[str, str]:
    """Read ``key=value`` words.

    Raises
    ------
    InputError
        A word is malformed, or a key occurs twice.
    """
    tags: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise InputError(f"tag {word!r}: expected key=value, such as owner=search-team")
        if key in tags:
            raise InputError(f"tag {key!r} is given twice")
        tags[key] = value
    return tags


def version_row(version: Version) -> list[str]:
    """Return a row for `VERSIONS_HEADER`."""
    try:
        metrics = ", ".join(f"{path} {text}" for path, text in flat(version.manifest["metrics"])[:3])
    except RankmillError as error:  # still show the other versions
        metrics = f"DAMAGED: {error}"
    size = size_text(version.size)
    if version.swept_in is not None:
        size += ", swept"
    elif version.marked_in is not None:
        size += ", to be swept"
    tags = ", ".join(f"{key}={value}" for key, value in sorted(version.tags.items()))
    row = [str(version), ", ".join(version.aliases), tags, time_text(version.row.time), metrics, size]
    return [*map(shown_in_line, row), version.sha256[:12]]


VERSIONS_HEADER = ["version", "aliases", "tags", "registered (UTC)", "metrics", "size", "sha256"]


def version_json(version: Version) -> dict[str, object]:
    """Return a version as JSON values; a damaged manifest is None, and ``fault`` is the error."""
    try:
        return version.to_json()
    except RankmillError as error:
        return {"name": version.name, "version": version.number, "sha256": version.sha256, "manifest": None} | {
            "fault": str(error)
        }


MOVE_FACTS = ("time", "actor", "host", "reason")
ALIASES_HEADER = ["alias", "version", "since (UTC)", "by", "protection", "versions before, oldest first"]


def alias_row(found: dict[str, Any]) -> list[str]:
    """Return a row under `ALIASES_HEADER` for what `alias_histories` returns of an alias."""
    last = found["history"][-1] if found["history"] else None
    before = [_version(move["version"]) for move in found["history"][:-1]]
    return [
        found["alias"],
        _version(found["version"]),
        "" if last is None else time_text(last["time"]),
        "" if last is None else f"{last['actor']} on {last['host']}",
        policy_text(found["policy"]),
        " ".join([*(["..."] if found["moves"] > len(found["history"]) else []), *before]),
    ]


def alias_histories(store: Registry, name: str, alias: str | None = None) -> list[dict[str, Any]]:
    """Return ``alias``, or every alias that was ever set or protected: its version and policy, and its last 20 moves.

    Raises
    ------
    UnknownModel
        The model or the alias does not exist.
    """
    state = store.state(name)
    known = sorted({*state.moves, *state.policies, *store.protected})
    if alias is not None and check_alias(alias) not in known:
        raise UnknownModel.unknown(f"alias of {name}", alias, known, cure="no version was promoted yet")
    found = []
    for each in known if alias is None else [alias]:
        policy, moves = store.policy(state, each), state.moves.get(each, [])
        last = [(move.version, store.entry(name, move.entry)) for move in moves[-LATEST_MOVES:]]
        history = [
            {"entry": e.number, "version": v, "op": e.change.op} | {key: getattr(e, key) for key in MOVE_FACTS}
            for v, e in last
        ]
        facts = {"alias": each, "version": state.target(each), "protected": policy is not None, "policy": policy}
        found.append(facts | {"moves": len(moves), "history": history})
    return found


def policy_of(terms: Mapping[str, Any]) -> AliasPolicy:
    """Return the policy with these terms; InputError if a digest is malformed."""
    try:
        return AliasPolicy(**{name: term for name, term in terms.items() if term not in {None, False}})
    except ValidationError as error:
        where, how = error.errors()[0]["loc"], "64 hex digits, as in the output of models gate --json"
        if where in {("convention",), ("dataset",)}:
            raise InputError(f"--{where[0]} {terms[str(where[0])]!r}: expected a digest of {how}") from None
        raise InputError(f"--protect: {first_fault(error)}") from None


def _version(number: int | None) -> str:
    return "none" if number is None else str(number)


MOST_NAMES = 8
IN_WORDS = {  # facts that are formatted
    *("dataset", "binspec_digest", "code_digest", "base_model", "changed_parameters"),
    *("intervals", "best_round", "rounds_trained", "seeds", "clicks"),
}
LATEST_MOVES = 20

Row = list[str]


class VersionDetails:
    """The details of ``version``; the constructor reads everything, so that later methods do not fail.

    Raises
    ------
    IntegrityError
        The manifest, an entry or a gate report is damaged.  Damaged model bytes are reported in ``fault``.
    """

    def __init__(self, store: Registry, version: Version) -> None:
        self.version, self._store = version, store
        self.facts = version.manifest
        state = version.state
        self.before = [n for n in (version.number - 1,) if n]
        self.after = [n for n in (version.number + 1,) if n in state.versions]
        self.twins = [n for n, row in state.versions.items() if row.model == version.sha256 and n != version.number]
        self.moves = self._moves()
        self.gates = {
            alias: (entry, store.gate_report(version.name, entry.number)) for alias, entry in version.gates.items()
        }
        self.fault = self._fault()
        self.attachments = {name: version.attachment(name) or b"" for name in sorted(version.row.attachments)}
        self.training = TrainingFacts.of(self.facts)
        self.circumstances = Circumstances.of(self.attachments.get(CIRCUMSTANCES))
        self.origin = Origin.of(self.attachments.get(ORIGIN))

    def to_json(self) -> dict[str, object]:
        """Return all details as JSON values."""
        version = self.version
        return version.to_json() | {
            "manifest_sha256": version.manifest_sha256,
            "entry": version.row.entry,
            "moves": [entry_json(entry) for entry in version.moves.values()],
            "history": [entry_json(entry) for entry in self.moves],
            "policies": {
                alias: None if policy is None else policy.model_dump(mode="json")
                for alias in version.aliases
                for policy in (self._store.policy(version.state, alias),)
            },
            "gates": [
                {"alias": alias, "entry": entry_json(entry), "report": report}
                for alias, (entry, report) in self.gates.items()
            ],
            "versions": {"before": self.before, "after": self.after, "same_bytes": self.twins},
            "attachments": {
                name: {"sha256": version.row.attachments[name], "size": len(data)}
                for name, data in self.attachments.items()
            },
            "circumstances": self._circumstances_json(),
            "origin": self.origin and self.origin.model_dump(mode="json", exclude_unset=True),
            "bytes": {
                "there": self.fault is None and version.swept_in is None,
                "fault": self.fault,
                "marked_in": version.marked_in,
                "swept_in": version.swept_in,
            },
        }

    def rows(self) -> list[Row]:
        """Return table rows of a heading and a text."""
        version = self.version
        rows = [
            ["registered", author_text(version.registered)],
            *([] if self.origin is None else [["imported from", "\n".join(self.origin.lines())]]),
            ["versions", self._neighbouring_versions()],
            *self._alias_rows(),
            *([["moves", "\n".join(map(entry_line, self.moves))]] if self.moves else []),
            *[["gate", "\n".join(self._gate_lines(alias))] for alias in self.gates],
            *([["tags", lines_of(version.tags)]] if version.tags else []),
            ["bytes", self._bytes()],
            ["sha256", version.sha256],
            ["file", str(version.model_path)],
            *self._data_rows(),
            *self._code_rows(),
            ["features", _names(self.facts["features"])],
            ["parameters", "\n".join(self._parameter_lines())],
            ["metrics", "\n".join(self._metric_lines())],
        ]
        if self.attachments:
            sizes = [f"{name}: {size_text(len(data))}" for name, data in self.attachments.items()]
            rows.append(["attachments", ", ".join(sizes)])
        known = {"features", "dataset_digest", "parameters", "metrics"}
        known |= set() if self.training is None else IN_WORDS
        return rows + [[shown_in_line(key), lines_of(value)] for key, value in self.facts.items() if key not in known]

    def _circumstances_json(self) -> dict[str, object] | None:
        if self.circumstances is None:
            return None
        read, written = as_json(self.circumstances), json.loads(self.attachments[CIRCUMSTANCES])
        return {
            name: read.get(name) for name in ("libraries", "python", "system", "machine", "resumed") if name in written
        }

    def _moves(self) -> list[Entry]:
        """Read the newest entries that moved an alias to or from this version; oldest first."""
        numbers = set()
        for moves in self.version.state.moves.values():
            for i, move in enumerate(moves):
                if self.version.number in {move.version, moves[i - 1].version if i else None}:
                    numbers.add(move.entry)
        return [self.version.log.read(number) for number in sorted(numbers)[-LATEST_MOVES:]]

    def _fault(self) -> str | None:
        if self.version.swept_in is not None:
            return None
        try:
            self.version.read()
        except (RankmillError, OSError) as error:
            return str(error)
        return None

    def _neighbouring_versions(self) -> str:
        parts = [f"after {n}" for n in self.before] + [f"before {n}" for n in self.after] or ["the only one"]
        parts += [f"the same model as {', '.join(map(str, self.twins))}"] if self.twins else []
        return ", ".join(parts)

    def _alias_rows(self) -> Iterator[Row]:
        version = self.version
        for alias, move in version.moves.items():
            policy = self._store.policy(version.state, alias)
            protected = "" if policy is None else f" (protected: {policy_text(policy)})"
            yield [alias, f"since {author_text(move)}{protected}"]

    def _gate_lines(self, alias: str) -> list[str]:
        """Describe the verdict and, from the report of `rankmill models gate`, the comparisons and failed guardrails."""
        entry, report = self.gates[alias]
        change: Any = entry.change
        lines = [f"{alias}, entry {entry.number}: {verdict_of(change)}"]
        for comparison in _mappings(report.get("comparisons")):
            metrics = comparison.get("metrics")
            found = metrics.get(change.metric) if isinstance(metrics, dict) else None
            if isinstance(found, dict) and {"candidate", "other", "difference", "interval"} <= found.keys():
                values = [_number(found[side]) for side in ("candidate", "other", "difference")]
                sign = "" if values[2].startswith("-") else "+"
                lines.append(
                    f"  {change.metric} {values[0]} against {values[1]} of {comparison.get('words', 'the other')}:"
                    f" {sign}{values[2]}{_interval(found['interval'])}"
                )
        failed = [rail for rail in _mappings(report.get("guardrails")) if rail.get("verdict") == "failed"]
        lines += [f"  FAILED {rail.get('name')}: {rail.get('words')}" for rail in failed]
        return [shown_in_line(line) for line in lines]

    def _bytes(self) -> str:
        version = self.version
        size = f"{size_text(version.size)} ({version.size:,} bytes)"
        if version.swept_in is not None:
            return f"{size}, swept in entry {version.swept_in} of the log: the model can no longer be used"
        marked = "" if version.marked_in is None else f", to be swept (marked in entry {version.marked_in} of the log)"
        return size + (", complete and undamaged" if self.fault is None else f", DAMAGED: {self.fault}") + marked

    def _data_rows(self) -> Iterator[Row]:
        dataset = None if self.training is None else self.training.dataset
        foreign = self.facts.get("converted_from")
        digest = self.facts["dataset_digest"] or (
            shown_in_line(f"unknown: trained by {foreign}") if foreign else "arrays in memory"
        )
        if dataset is None:
            yield ["dataset", digest]
            return
        sizes = {"": dataset} | {f"{name}: ": size for name, size in dataset.splits.items()}
        lines = [
            shown_in_line(f"{name}{size.rows:,} documents of {size.queries:,} queries") for name, size in sizes.items()
        ]
        if rule := self.facts["dataset"].get("split_by"):
            how = ", ".join(path if text == "true" else f"{path} {text}" for path, text in flat(rule))
            lines.append(f"splits by {how}")
        yield ["dataset", "\n".join([digest, *lines])]
        pairs = None if dataset.pairs is None else dataset.pairs.sources
        sources = (("made from", dataset.sources), ("judgments from", dataset.judgments), ("pairs from", pairs))
        yield from ([words, "\n".join(_file_lines(files))] for words, files in sources if files is not None)

    def _code_rows(self) -> Iterator[Row]:
        if (training := self.training) is not None:
            if training.binspec_digest is not None:
                most = None if training.dataset is None else training.dataset.max_bin
                yield ["bins", training.binspec_digest + ("" if most is None else f", at most {most} a feature")]
            if training.code_digest is not None:
                yield ["code", training.code_digest]
            if training.base_model is not None:
                yield ["base model", _model_text(training.base_model)]
        if (now := self.circumstances) is not None:
            names = {**now.libraries, "python": now.python, "on": now.system, "processor": now.machine}
            yield ["made with", ", ".join(f"{name} {each}" for name, each in names.items() if each is not None)]
            if now.resumed is not None:
                yield ["resumed from", _model_text(now.resumed)]

    def _parameter_lines(self) -> list[str]:
        parameters = with_option_names(self.facts["parameters"])
        changed = None if self.training is None else self.training.changed_parameters
        if changed is None:
            return lines_of(parameters).split("\n") if parameters else ["none"]
        shown = {name: parameters[name] for name in dict.fromkeys([*changed, "seed"]) if name in parameters}
        rest = len(parameters.keys() - shown.keys() - {"preset"})
        of_preset = f" ({DEFAULTS})" if "preset" in parameters else ""
        return [*(lines_of(shown).split("\n") if shown else []), f"and {rest} others with their defaults{of_preset}"]

    def _metric_lines(self) -> list[str]:
        intervals = (self.training and self.training.intervals) or {}
        lines = []
        for split, metrics in self.facts["metrics"].items():
            if isinstance(metrics, dict):
                limits = intervals.get(split, {})
                lines += [
                    f"{split} {name} {_number(each)}{_interval(limits.get(name))}" for name, each in metrics.items()
                ]
            else:
                lines.append(f"{split} {_number(metrics)}")
        if (training := self.training) is not None:
            if training.best_round is not None and training.rounds_trained is not None:
                lines.append(f"after {training.best_round} of {training.rounds_trained} rounds trained")
            lines += [] if training.seeds is None else _seed_lines(training.seeds)
            lines += [] if training.clicks is None else training.clicks.lines(training.metrics or {})
        return [shown_in_line(line) for line in lines] or ["none"]


def _model_text(model: OtherModel) -> str:
    return f"{model.model or 'a file'}, sha256 {model.sha256}"


def _file_lines(files: InputFiles) -> list[str]:
    lines = [f"{files.files:,} file{'s' if files.files != 1 else ''}, {size_text(files.bytes)}"]
    for file in files.list or ():
        split = "" if file.split is None else f", {file.split}"
        lines.append(f"{file.name}  {size_text(file.size)}{split}  sha256 {file.sha256}")
    if files.list_sha256 is not None:
        lines.append(f"sha256 of their list {files.list_sha256}")
    return [shown_in_line(line) for line in lines]


def _seed_lines(seeds: SeedsFacts) -> list[str]:
    listed = ", ".join(str(each.seed) for each in seeds.trained)
    what = "their average" if seeds.chosen is None else f"the best, {seeds.chosen}"
    return [f"seeds {listed}: {what}"] + [
        f"noise floor across seeds, {split} {name}: {_number(spread.mean)} +- {_number(spread.deviation)}"
        for split, metrics in seeds.noise_floor.items()
        for name, spread in metrics.items()
    ]


def _names(names: list[str]) -> str:
    shown = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 2], "...", names[-1]]
    return shown_in_line(f"{len(names)}: {', '.join(shown)}")


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else shown_in_line(json.dumps(value))


def _interval(limits: object) -> str:
    if (
        isinstance(limits, list | tuple)
        and len(limits) == 2
        and all(isinstance(limit, int | float) for limit in limits)
    ):
        return f" [{limits[0]:.4f}, {limits[1]:.4f}]"
    return ""


def _mappings(value: object) -> list[dict[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
