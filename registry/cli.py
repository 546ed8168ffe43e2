"""``rankmill models``: look at registered versions, move aliases, check the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.errors import InputError, IntegrityError, InvalidName
from registry.names import PRODUCTION

if TYPE_CHECKING:
    from registry.log import Entry
    from registry.promotion import Expected

app = typer.Typer(no_args_is_help=True, help="Versions of models: look at them, promote them, roll back, check them.")

RegistryFolder = Annotated[
    Path, typer.Option("--registry", envvar="RANKMILL_REGISTRY", file_okay=False, help="Folder of the registry.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Alias = Annotated[str, typer.Option("--alias", help="Which alias to move.")]
Expect = Annotated[
    str | None,
    typer.Option("--expect", metavar="VERSION|none", help="Move only if the alias means this now; else exit with 75."),
]
Reason = Annotated[str, typer.Option("--reason", help="One line for the log.")]
DEFAULT_FOLDER = Path("registry-data")


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(help="Show this model's versions instead.")] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """List the models, or the versions of one.

    Example: rankmill models list web
    """
    from registry import Registry

    store = Registry(registry)
    if name is not None:
        versions = store.versions(_bare(name))
        if as_json:
            _print_json({"name": name, "versions": [version.to_json() for version in versions]})
            return
        rows = [
            [str(v), ", ".join(v.aliases), _when(v.registered), _metrics(v.manifest), _size(v.size), v.sha256[:12]]
            for v in versions
        ]
        _print_table(["version", "aliases", "registered (UTC)", "metrics", "size", "sha256"], rows)
        return
    models: list[dict[str, Any]] = []
    for model in store.names():
        versions, last = store.versions(model), store.log(model)[-1]
        aliases = {alias: version.number for version in versions for alias in version.aliases}
        models.append({"name": model, "versions": len(versions), "aliases": aliases, "changed": last.time})
    if as_json:
        _print_json({"registry": str(registry), "models": models})
    elif not models:
        typer.echo(f"No model is registered in {registry} yet: rankmill train DATASET --name NAME")
    else:
        rows = [
            [
                m["name"],
                str(m["versions"]),
                ", ".join(f"{a} = {v}" for a, v in sorted(m["aliases"].items())),
                m["changed"][:19].replace("T", " "),
            ]
            for m in models
        ]
        _print_table(["model", "versions", "aliases", "last change (UTC)"], rows)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="NAME (its latest version), NAME@7 or NAME@production.")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show where one version comes from: data, features, parameters, metrics, who registered and promoted it.

    Example: rankmill models show web@production
    """
    from registry import Registry

    version = Registry(registry).resolve(model, bare="latest")
    if as_json:
        _print_json(version.to_json() | {"moves": [_entry_json(move) for move in version.moves.values()]})
        return
    facts = version.manifest
    features = facts["features"]
    names = features if len(features) <= 8 else [*features[:6], "...", features[-1]]
    rows = [
        ["registered", f"{_when(version.registered)} UTC by {_who(version.registered)}{_why(version.registered)}"],
        *[[alias, f"since {_when(move)} UTC by {_who(move)}{_why(move)}"] for alias, move in version.moves.items()],
        ["sha256", version.sha256],
        ["size", f"{_size(version.size)} ({version.size:,} bytes)"],
        ["file", str(version.model_path)],
        ["dataset", facts["dataset_digest"] or "arrays in memory"],
        ["features", f"{len(features)}: {', '.join(names)}"],
        ["parameters", _lines(facts["parameters"])],
        ["metrics", _lines(facts["metrics"])],
    ]
    told = {"features", "dataset_digest", "parameters", "metrics"}
    rows += [[key, _lines(value)] for key, value in facts.items() if key not in told]
    _print_table(["", str(version)], rows)


@app.command()
def log(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Tell the history of a model: every registration, promotion and rollback, oldest first.

    Example: rankmill models log web
    """
    from registry import Registry

    entries = Registry(registry).log(_bare(name))
    if as_json:
        _print_json({"name": name, "entries": [_entry_json(entry) for entry in entries]})
        return
    rows = [[str(e.number), _when(e), _what(e), _who(e), e.reason] for e in entries]
    _print_table(["#", "when (UTC)", "what", "who", "why"], rows)


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="The version to promote: NAME@7 or NAME@latest.")],
    alias: Alias = PRODUCTION,
    expect: Expect = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Let an alias mean this version from now on, in one step.

    Example: rankmill models promote web@7 --reason "won the test of May"
    """
    from registry import Registry

    if "@" not in model:
        raise InvalidName(f"{model!r}: say which version to promote, such as {model}@7 or {model}@latest")
    store = Registry(registry)
    version = store.resolve(model, bare="latest")
    before = len(store.log(version.name))
    entry = store.promote(version.name, version.number, alias=alias, expect=_expected(expect), reason=reason)
    _report_move(version.name, alias, entry, changed=entry.number > before, as_json=as_json)


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    alias: Alias = PRODUCTION,
    to: Annotated[int | None, typer.Option("--to", min=1, help="A version that the alias meant once.")] = None,
    expect: Expect = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Let an alias mean again what it last meant before; the log keeps both moves.

    Example: rankmill models rollback web --reason "slow on phones"
    """
    from registry import Registry

    store = Registry(registry)
    before = len(store.log(_bare(name)))
    entry = store.rollback(name, alias=alias, to=to, expect=_expected(expect), reason=reason)
    _report_move(name, alias, entry, changed=entry.number > before, as_json=as_json)


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Name of a model; all of them if left out.")] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Read every log entry and every blob and check them against their digests; exit with 13 if something is wrong.

    Example: rankmill models verify
    """
    from registry import Registry

    store = Registry(registry)
    if not store.exists():  # a misspelt folder must not look healthy
        raise InputError(f"{registry}: no registry; name its folder with --registry or RANKMILL_REGISTRY")
    report = store.verify(None if name is None else _bare(name))
    if as_json:
        _print_json(report.to_json())
    else:
        for finding in report.findings:
            typer.echo(finding)
        if report.ok:
            counts = f"models {report.models}, entries {report.entries}, versions {report.versions}"
            typer.echo(f"All is well in {registry}: {counts}, {_size(report.bytes_read)} read.")
    if not report.ok:
        raise IntegrityError(f"{registry}: findings: {len(report.findings)}; the first: {report.findings[0]}")


def _bare(name: str) -> str:
    if "@" in name:
        raise InvalidName(f"{name!r}: expected the name of a model alone, such as {name.partition('@')[0]!r}")
    return name


def _expected(text: str | None) -> Expected:
    if text is None:
        return ...
    if text == "none":
        return None
    if not text.isdecimal():
        raise InvalidName(f"--expect {text!r}: expected the number of a version, or 'none' for an alias never set")
    return int(text)


def _report_move(name: str, alias: str, entry: Entry, *, changed: bool, as_json: bool) -> None:
    if as_json:
        _print_json({"name": name, "changed": changed, "entry": _entry_json(entry)})
    elif changed:
        typer.echo(f"{name}: {_what(entry)} (entry {entry.number} of the log)")
    else:
        typer.echo(f"{name}@{alias} is version {entry.change.version} already, since {_when(entry)} UTC")


def _entry_json(entry: Entry) -> dict[str, Any]:
    return entry.to_json() | {"sha256": entry.digest}


def _what(entry: Entry) -> str:
    change = entry.change
    if change.op == "register":
        return f"registered version {change.version}"
    before = "not set before" if change.previous is None else f"before: {change.previous}"
    if change.op == "promote":
        return f"promoted version {change.version} to {change.alias} ({before})"
    return f"rolled {change.alias} back to version {change.version} ({before})"


def _when(entry: Entry) -> str:
    return entry.time[:19].replace("T", " ")


def _who(entry: Entry) -> str:
    return f"{entry.actor} on {entry.host}"


def _why(entry: Entry) -> str:
    return f": {entry.reason}" if entry.reason else ""


def _size(n: int) -> str:
    size, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Name each leaf of nested mappings by its path: {"valid": {"ndcg@10": 0.5}} is ("valid ndcg@10", "0.5")."""
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{path} {key}".strip())]
    if isinstance(value, float):
        return [(path, f"{value:.6g}")]
    return [(path, value if isinstance(value, str) else json.dumps(value))]


def _lines(value: Any) -> str:
    pairs = _flat(value)
    width = max(len(path) for path, _ in pairs)
    return "\n".join(f"{path:<{width}}  {text or '(left out)'}".strip() for path, text in pairs)


def _metrics(facts: dict[str, Any]) -> str:
    return ", ".join(f"{path} {text}" for path, text in _flat(facts["metrics"])[:3])


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in header:
        table.add_column(Text(title), overflow="fold")
    for row in rows:  # as plain text: what came from a manifest or a reason is neither markup nor control codes
        table.add_row(*(Text("".join(c if c.isprintable() or c == "\n" else "?" for c in cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # lines of a file need not fold where a terminal would
    console.print(table)
