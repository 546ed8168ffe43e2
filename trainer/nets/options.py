"""Options of training a net.  They are stored in the model file, so none of them depends on the machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import DEFAULTS, group, made_of, option, option_like, options, spelled, values_of
from rankmill.foundation.scalars import whole_number
from rankmill.trainer.options import StartOptions, numbers_in
from rankmill.trainer.parameters import TrainParameters, section_in

T = TypeVar("T")

TREES, NET = KINDS = ("trees", "net")
ADAMW, SGD = OPTIMISERS = ("adamw", "sgd")
CONSTANT, FOLLOW_LOSS, COSINE = SCHEDULES = ("constant", "follow_loss", "cosine")
QUERIES, PAIRS = UPDATES = ("queries", "pairs")
WIDEST = 4096
MOST_LAYERS = 8


def parse_layers(text: str) -> tuple[int, ...]:
    """Read ``256,128``; empty text means no hidden layer.

    >>> parse_layers("256, 128"), parse_layers("")
    ((256, 128), ())

    Raises
    ------
    InvalidParameter
        A part is not a whole number.
    """
    return numbers_in(int, f"{spelled('layers')}: expected widths such as 256,128", text) if text.strip() else ()


def as_layers(layers: Any) -> tuple[int, ...]:
    """Return widths as a tuple of plain int.

    InvalidParameter unless they are 1 to ``WIDEST``, and at most ``MOST_LAYERS``.
    """
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise InvalidParameter(f"{spelled('layers')} must be widths such as (256, 128), got {layers!r}")
    found = tuple(whole_number("layers", width) for width in layers)
    if len(found) > MOST_LAYERS or not all(1 <= width <= WIDEST for width in found):
        raise InvalidParameter(
            f"{spelled('layers')} must be up to {MOST_LAYERS} widths of 1 to {WIDEST}, got {list(found)}"
        )
    return found


@options
class NetOptions:
    """Options of one training of a net.

    The defaults make a small modern net.  :func:`as_published` returns those of RankNet and LambdaRank as first
    published.

    Raises
    ------
    InvalidParameter
        A value is of another kind or outside its bounds, or two options do not go together.
    """

    objective: str = option_like(
        TrainParameters,
        "objective",
        default="lambdamart",
        by_preset=None,
        help="Loss to minimise: lambdamart (LambdaRank), ranknet, softmax, lambdaloss, l2, .. All but coxph, gbrank, "
        "huber, mcrank, ordinal and functions.",
    )
    metric: str = option_like(TrainParameters, "metric", default="ndcg@10")
    stop_metric: str = option_like(TrainParameters, "stop_metric", default="")
    gain: str = option_like(TrainParameters, "gain", default="exp")
    sigma: float = option_like(TrainParameters, "sigma", default=1.0)
    truncation: int = option_like(TrainParameters, "truncation", default=30)
    lambda_normalisation: bool = option_like(TrainParameters, "lambda_normalisation", default=True)
    layers: tuple[int, ...] = option(
        default=(256, 128),
        help="Widths of the hidden layers, such as 256,128; empty: a linear score.",
        metavar="WIDTH,WIDTH,..",
        read=parse_layers,
        convert=as_layers,
    )
    activation: str = option(default="relu", help="Activation of the hidden layers.", choices=("relu", "tanh"))
    batch_norm: bool = option(default=True, help="Normalise the sums of each hidden layer over the batch.")
    dropout: float = option(
        default=0.3, help="Share of the outputs of each hidden layer to set to 0, in [0, 1).", least=0, below=1
    )
    input_noise: float = option(
        default=0.0,
        help="Standard deviation of noise that is added to the scaled numeric inputs in training.",
        least=0,
        most=100,
    )
    transform: str = option(
        default="quantile",
        help="Transform of numeric features, fitted on the train split: quantile (to normal scores, by quantiles), "
        "log1p (sign(x) log(1 + |x|)) or linear. Each is then scaled to mean 0 and deviation 1.",
        choices=("quantile", "log1p", "linear"),
    )
    missing_indicators: bool = option(
        default=True, help="Add an indicator of missing values for each feature that has some in the train split."
    )
    embedding_width: int = option(
        default=8, help="Numbers that represent a category of a categorical feature.", least=1, most=256
    )
    max_categories: int = option(
        default=1000,
        help="Maximum number of categories of a feature with numbers of their own, the most frequent; the others "
        "share theirs.",
        least=1,
        most=1 << 20,
    )
    optimiser: str = option(default=ADAMW, help="How weights follow gradients: adamw or sgd.", choices=OPTIMISERS)
    learning_rate: float = option_like(
        TrainParameters,
        "learning_rate",
        default=0.002,
        by_preset=None,
        help="Learning rate of the optimiser at the start, in (0, 1].",
    )
    schedule: str = option(
        default=CONSTANT,
        help="Learning rate of later epochs: constant, follow_loss (times 0.8 after an epoch whose training loss is "
        "above that of the epoch before) or cosine (down to 0 at the last epoch).",
        choices=SCHEDULES,
    )
    weight_decay: float = option(
        default=0.01,
        help="Share of each weight to take off, times the learning rate, at every step.",
        least=0,
        most=100,
    )
    batch_documents: int = option(
        default=2048,
        help="Minimum number of documents of a batch, which is whole queries; 1: every query is a batch.",
        least=1,
        most=1 << 24,
    )
    updates: str = option(
        default=QUERIES,
        help="What changes the weights at once: queries (the forces of all pairs are added up first) or pairs "
        "(RankNet before the forces were factored; slow, for comparison).",
        choices=UPDATES,
    )
    epochs: int = option(default=100, help="Maximum number of passes over the train split.", least=1, most=1_000_000)
    early_stopping_epochs: int = option(
        default=10,
        help="Stop after this many epochs without an improvement on the valid split. 0: never; keep the last epoch.",
        least=0,
        most=1_000_000,
    )
    seed: int = option_like(TrainParameters, "seed", default=7)

    def check_together(self) -> None:
        """Refuse options that do not go together."""
        if self.activation == "tanh" and self.dropout > 0.0:
            raise InvalidParameter(f"{spelled('dropout')} works with activation relu only; set it to 0 for tanh")
        if self.updates == PAIRS and (  # `losses` checks the objective, which the command line adds later
            len(self.layers) > 1
            or (self.layers and self.activation != "tanh")
            or self.batch_norm
            or self.optimiser != SGD
            or self.input_noise > 0.0
            or self.weight_decay > 0.0
        ):
            raise InvalidParameter(
                f"{spelled('updates')} pairs works as published only: at most one hidden layer, of tanh, no batch_norm,"
                " input_noise nor weight_decay, and optimiser sgd"
            )

    def losses(self) -> TrainParameters:
        """Return the parameters that objectives take.

        InvalidParameter if pairs update the weights by another objective than ranknet.
        """
        if self.updates == PAIRS and self.objective != "ranknet":
            raise InvalidParameter(
                f"{spelled('updates')} pairs works with {spelled('objective')} ranknet only, got {self.objective}"
            )
        return TrainParameters(
            preset=DEFAULTS, **{name: getattr(self, name) for name in SHARED if name != "learning_rate"}
        )

    def stored(self) -> dict[str, Any]:
        """Return the options by name, as JSON has them."""
        return {**asdict(self), "layers": list(self.layers)}


SHARED = tuple(name for name in NetOptions.__annotations__ if name in TrainParameters.__annotations__)
"""Options that a net has in common with trees, with the same meaning."""
FROM = ("params", "resume", "base_model")
"""What only training from the command line starts from."""


@options
class ModelOptions(StartOptions):
    """What kind of model to train, and what a training starts from."""

    model: str = option(
        default=TREES,
        help="Kind of model: trees, or net, a small neural net, whose own options are layers and those after it.",
        choices=KINDS,
    )
    net: NetOptions = group(default_factory=NetOptions)

    def net_options(self, parameters: TrainParameters, *others: str) -> NetOptions:
        """Return the options of the net.

        Options shared with trees are those of ``parameters`` where they are given there.

        ``others`` are used by the caller.

        Raises
        ------
        InvalidParameter
            ``parameters`` has an option that only trees have, or the training is to start from a model.
        """
        usual, given = values_of(TrainParameters()), values_of(parameters)
        of_trees = [name for name in given if name not in {*SHARED, *others} and given[name] != usual[name]]
        of_trees += [name for name in ("resume", "base_model") if getattr(self, name)]
        if of_trees:
            raise InvalidParameter(
                f"{spelled(of_trees[0])} is an option of trees; leave it out with {spelled('model')} net"
                + (f", and use {spelled('checkpoint')} to resume after a kill" if of_trees == ["resume"] else "")
            )
        return replace(
            self.net, **{name: given[name] for name in SHARED if given[name] is not None and given[name] != usual[name]}
        )

    def started(self, parameters: TrainParameters, given: Collection[str]) -> tuple[ModelOptions, TrainParameters]:
        """Return both with the values of the section ``[train]`` of the file ``params``.

        The options that are ``given`` override it.

        Raises
        ------
        InvalidParameter
            The file is not valid TOML, has no such section, or the section has an unknown key or an invalid value.
        """
        if self.params is None:
            return self, parameters
        of_trees, of_kind = values_of(TrainParameters()), values_of(ModelOptions())
        section = section_in(self.params, [*of_trees, *(name for name in of_kind if name not in FROM)])
        values = {**values_of(self), **values_of(parameters)}
        chosen = {name: values[name] for name in values if name in given}

        def made(kind: type[T], names: Collection[str], more: Mapping[str, Any]) -> T:
            return made_of(kind, {name: value for name, value in more.items() if name in names})

        try:
            made(TrainParameters, of_trees, section)
            made(ModelOptions, of_kind.keys() - {*SHARED}, section)
        except InvalidParameter as error:
            raise InvalidParameter(f"{self.params}: [train]: {error}") from None
        both = {**section, **chosen}
        kind = made(ModelOptions, of_kind.keys() - {*SHARED}, both)
        return replace(kind, params=None), made(TrainParameters, of_trees, both)

    def check_trees(self) -> None:
        """Raise InvalidParameter if an option of nets is given for trees."""
        usual, given = values_of(NetOptions()), values_of(self.net)
        of_nets = [name for name in given if given[name] != usual[name]]
        if of_nets:
            raise InvalidParameter(f"{spelled(of_nets[0])} is an option of nets; add {spelled('model')} net")


def as_published(**changes: Any) -> NetOptions:
    """Return the options of RankNet and LambdaRank as published (Burges 2010, sections 2 to 4), with ``changes``.

    It has one hidden layer of tanh (``layers=()``: a linear score). Weights change after each query by its factored
    gradient with plain gradient descent, and the learning rate follows the training loss.

    >>> as_published(objective="lambdamart", layers=()).activation
    'tanh'
    """
    published: dict[str, Any] = {
        "objective": "ranknet",
        "truncation": 2**31,
        "lambda_normalisation": False,
        "layers": (10,),
        "activation": "tanh",
        "batch_norm": False,
        "dropout": 0.0,
        "transform": "linear",
        "optimiser": SGD,
        "learning_rate": 0.001,
        "schedule": FOLLOW_LOSS,
        "weight_decay": 0.0,
        "batch_documents": 1,
    }
    return NetOptions(**{**published, **changes})
