"""``rankmill models list|show|log|verify``: look, and change nothing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder, bare_name
from registry.errors import InputError, IntegrityError
from registry.printing import (
    entry_json,
    lines_of,
    metrics_of,
    print_json,
    print_table,
    size_text,
    what_of,
    when_of,
    who_of,
    why_of,
)

app = typer.Typer()


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
        versions = store.versions(bare_name(name))
        if as_json:
            print_json({"name": name, "versions": [version.to_json() for version in versions]})
            return
        rows = [
            [
                str(v),
                ", ".join(v.aliases),
                when_of(v.registered),
                metrics_of(v.manifest),
                size_text(v.size),
                v.sha256[:12],
            ]
            for v in versions
        ]
        print_table(["version", "aliases", "registered (UTC)", "metrics", "size", "sha256"], rows)
        return
    models: list[dict[str, Any]] = []
    for model in store.names():
        versions, last = store.versions(model), store.log(model)[-1]
        aliases = {alias: version.number for version in versions for alias in version.aliases}
        models.append({"name": model, "versions": len(versions), "aliases": aliases, "changed": last.time})
    if as_json:
        print_json({"registry": str(registry), "models": models})
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
        print_table(["model", "versions", "aliases", "last change (UTC)"], rows)


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
        print_json(version.to_json() | {"moves": [entry_json(move) for move in version.moves.values()]})
        return
    facts = version.manifest
    features = facts["features"]
    names = features if len(features) <= 8 else [*features[:6], "...", features[-1]]
    rows = [
        [
            "registered",
            f"{when_of(version.registered)} UTC by {who_of(version.registered)}{why_of(version.registered)}",
        ],
        *[
            [alias, f"since {when_of(move)} UTC by {who_of(move)}{why_of(move)}"]
            for alias, move in version.moves.items()
        ],
        ["sha256", version.sha256],
        ["size", f"{size_text(version.size)} ({version.size:,} bytes)"],
        ["file", str(version.model_path)],
        ["dataset", facts["dataset_digest"] or "arrays in memory"],
        ["features", f"{len(features)}: {', '.join(names)}"],
        ["parameters", lines_of(facts["parameters"])],
        ["metrics", lines_of(facts["metrics"])],
    ]
    told = {"features", "dataset_digest", "parameters", "metrics"}
    rows += [[key, lines_of(value)] for key, value in facts.items() if key not in told]
    print_table(["", str(version)], rows)


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

    entries = Registry(registry).log(bare_name(name))
    if as_json:
        print_json({"name": name, "entries": [entry_json(entry) for entry in entries]})
        return
    rows = [[str(e.number), when_of(e), what_of(e), who_of(e), e.reason] for e in entries]
    print_table(["#", "when (UTC)", "what", "who", "why"], rows)


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
    report = store.verify(None if name is None else bare_name(name))
    if as_json:
        print_json(report.to_json())
    else:
        for finding in report.findings:
            typer.echo(finding)
        if report.ok:
            counts = f"models {report.models}, entries {report.entries}, versions {report.versions}"
            typer.echo(f"All is well in {registry}: {counts}, {size_text(report.bytes_read)} read.")
    if not report.ok:
        raise IntegrityError(f"{registry}: findings: {len(report.findings)}; the first: {report.findings[0]}")
