"""The commands of ``rankmill models`` that read trees, which the registry itself does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import rankmill.registry as registries  # which loads its classes when they are asked for
from rankmill.clicks.cli import PropensityFile
from rankmill.foundation.command_line import takes_options
from rankmill.foundation.cures import command
from rankmill.foundation.errors import InputError
from rankmill.foundation.shown import shown_in_line
from rankmill.gate.gate_rules import GateRequest
from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, NewModel, Reason, RegistryFolder
from rankmill.registry.rendering import print_json, print_table
from rankmill.scorer.cli_options import Conventions, NThreads
from rankmill.trainer.options import BlendOptions, MergeOptions

app = typer.Typer()

Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL..", help="Model files, or NAME@7, NAME@latest or NAME (its production version)."),
]


@app.command()
@takes_options
def gate(
    *,
    model: Annotated[str, typer.Argument(help="Candidate: NAME (its latest version) or NAME@7.")],
    asked: GateRequest,
    propensities: PropensityFile = None,
    convention: Annotated[
        str | None,
        typer.Option(help="Metric conventions, as in evaluate.  Default: as the alias' policy says, else rankmill."),
    ] = None,
    conventions: Conventions,
    show: Annotated[
        bool, typer.Option("--show", help="Print the newest stored gate report of this version; measure nothing.")
    ] = False,
    n_threads: NThreads = 0,
    reason: Annotated[str, typer.Option(help="Note kept with the verdict in the log, one line.")] = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Compare a candidate with the current version of an alias on the same queries, and record the verdict.

    The candidate passes if the lower end of the 95 % bootstrap interval of the mean difference is above minus the
    margin, and all guardrails pass.  If the alias is not set yet, the candidate must be significantly better than the
    order of the rows, and not significantly worse than the best single feature.  If it fails, the verdict is recorded
    too and the exit code is 11.

    Example: rankmill models gate web --on web.dataset

    Example: rankmill models gate web@7 --on web.dataset --split test --metric ndcg@10 --margin 0.002

    With clicks: rankmill models gate web@7 --on web.dataset --log log.parquet --propensities pbm.json

    Example: rankmill models gate web@7 --show
    """
    store = registries.Registry(registry)
    if show:
        from rankmill.gate.recording import stored_result

        result = stored_result(store, model, asked.rules.alias)
    else:
        from rankmill.gate.learnt_from_clicks import ClickEvidence
        from rankmill.gate.recording import gate as through_the_gate
        from rankmill.pipeline.dataset.dataset import Dataset
        from rankmill.pipeline.dataset.manifest import MANIFEST_NAME
        from rankmill.pipeline.judgments.propensities import read_propensities
        from rankmill.scorer.metrics.conventions import OURS, named_convention

        if asked.on is None:
            raise InputError("no dataset given; name one with --on DATASET, or print a stored report with --show")
        if not asked.on.exists() and (Path(model) / MANIFEST_NAME).is_file():
            raise InputError(
                f"{model} is a dataset; swap the two: {command('models', 'gate', asked.on, '--on', Path(model))}"
            )
        if bool(asked.log) != (propensities is not None):
            raise InputError("--log and --propensities go together; give both or none")
        named = convention is not None or conventions
        result = through_the_gate(
            store, model, Dataset.open(asked.on), asked.split, asked=asked.rules,
            convention=named_convention(convention or OURS).but(**conventions) if named else None,
            clicks=None if propensities is None else ClickEvidence(asked.log, read_propensities(propensities)),
            n_threads=n_threads, reason=reason,
        )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        typer.echo("\n".join(map(shown_in_line, result.render().split("\n"))))
    if not show:
        result.require()


@app.command()
def register(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Model file, as written by Forest.save.")],
    name: NewModel,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET|DIGEST",
            help="Training data: a dataset folder, so that the gate knows its train queries, or a digest.  Default: as"
            " in the file.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help='JSON object with metrics, such as {"test": {"ndcg@10": 0.51}}.  Default: as in the file.',
            show_default=False,
        ),
    ] = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Register a model file as the next version of NAME.

    Use it for models that train has not registered here.  The file is checked first; if it is damaged, nothing is
    written and the exit code is 13.  A model that NAME has already is not registered twice, unless --dataset or
    --metrics add something new.

    Example: rankmill models register best.rankmill --name web --metrics test.json
    """
    from rankmill.python.model_files import register_file

    done = register_file(registries.Registry(registry), file, name, dataset=dataset, metrics=metrics, reason=reason)
    if as_json:
        print_json(done.facts)
    else:
        verb = "registered" if done.is_new else "the same as"
        shape = f"{done.model.n_trees} trees of {done.model.n_features} features"
        typer.echo(f"{verb} {done.version} in {registry}: {shape}\nsha256 {done.version.sha256}")


@app.command()
@takes_options
def merge(
    *,
    models: Models,
    name: NewModel,
    rules: MergeOptions,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Merge several models into one, whose score is the weighted mean or sum of theirs, and register it.

    The models may differ in features, objective and data; each must have one score per document. The result cannot be
    resumed.

    Example: rankmill models merge web@3 shop@latest --weights 0.7,0.3 --name both
    """
    from rankmill.trainer.derived_models_service import merge_and_register

    done = merge_and_register(models, name, registries.Registry(registry), rules, reason=reason)
    if as_json:
        print_json(done)
    else:
        typer.echo(done.render())


@app.command()
@takes_options
def blend(
    *,
    models: Models,
    on: Annotated[Path, typer.Option("--on", metavar="DATASET", help="Dataset on which to find the weights.")],
    name: NewModel,
    options: BlendOptions,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Blend several models into one whose score is a weighted sum of theirs, with the best weights, and register it.

    The models may be of any kind; the blend holds them all, so nothing else is needed to use it. Weights are found on a
    split that no model learnt from.

    Example: rankmill models blend web@3 shop@latest --on web.dataset --name both
    """
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.trainer.derived_models_service import blend_and_register

    done = blend_and_register(Dataset.open(on), models, name, registries.Registry(registry), options, reason=reason)
    if as_json:
        print_json(done)
    else:
        typer.echo(done.render())


Compared = "NAME (its latest version), NAME@6, NAME@production or a model file."


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help=f"Old model: {Compared}")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="New model, in the same form.")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show the parameters, features, data and metrics of two models side by side.

    Example: rankmill models diff web@production web@latest
    """
    from rankmill.diff import Side
    from rankmill.diff import diff as difference

    found = difference(Side.of(old, registry), Side.of(new, registry))
    if as_json:
        print_json(found)
    else:
        print_table(["", found.old, found.new, ""], found.rows())
