"""What does not work together: one table of options, losses and places of training, with the reason and the cure.

An option that is left out, None, works with everything until a preset has chosen its value.  ``criterion`` and ``leaf``
are looked up as they are for a loss: ``ole`` of a sum of single terms is ``rwse``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled

Test = Callable[[Any], bool]
Loss = Any  # an Objective or its class, whose module imports the one of the parameters, which asks this one
Parameters = Any  # TrainParameters


class Fact(NamedTuple):
    """Something that is no option, in words, and why it does not work with others if the table does not say it."""

    words: str
    why: str = ""


class Clash(NamedTuple):
    """Two values that do not work together: an option and a test of its value, another one, the reason and the cure.

    Options in a cure are between backquotes, so that a command line shows their flags.
    """

    option: str
    when: Test
    other: str
    but: Test
    why: str = ""
    cure: str = "leave out one of the two"


def _among(*values: object) -> Test:
    return lambda value: value in values


def _not(*values: object) -> Test:
    return lambda value: value not in values


def _above(bound: float) -> Test:
    return lambda value: bool(value > bound)


def _below(bound: float) -> Test:
    return lambda value: bool(value < bound)


_on: Test = bool
_OLE, _OTHER_CRITERION = _among("ole"), "use `criterion` rwse or se, or leave it out"
_OTHER_LOSS = "use another objective, such as lambdamart or l2"
_ONE_MACHINE = "train on one machine"
_BY_GRADIENT = ("mvs", "goss")  # draw by gradients, which no one knows before the step
CLUSTER = Fact("a cluster")
_SCORES = "which needs one score per document and gradients of it"

CLASHES = (
    # rounds
    Clash("keep_rounds", _among("all"), "rounds_by", _not("valid"), "one keeps every round, the other drops some"),
    Clash("step_search", _not("none"), "boosting", _not("gbdt"), "that decides the weights of trees", "set it to none"),
    Clash("rounds_by", _among("oob"), "boosting", _among("dart"), "a round changes trees that have seen everything"),
    Clash("rounds_by", _among("oob"), "members", _above(1), "it measures one model"),
    Clash("rounds_by", _among("oob"), "bootstrap", _among(*_BY_GRADIENT), "it needs a sample independent of gradients"),
    Clash("members", _above(1), "boosting", _among("rf"), "a forest is a mean already", "give more rounds instead"),
    # clicks
    Clash("position_bias", _not("none"), "propensities", _on, "they correct the same bias"),
    Clash("propensities", _on, "goals", _on, "goals are not corrected"),
    Clash(
        "position_bias", _not("none"), "boosting", _not("gbdt"), "each round must see the sum of all before",
        "set it to gbdt",
    ),
    Clash("position_bias", _not("none"), "members", _above(1), "each would have biases of its own", "set it to 1"),
    *(
        Clash(name, test, "refit", _not("none"), "the valid split may have judgments, not clicks", "set it to none")
        for name, test in (("position_bias", _not("none")), ("propensities", _on))
    ),
    # samples and splits
    *(
        Clash("bootstrap", _among("goss"), name, _below(1.0), "it draws each query or document itself", "set it to 1")
        for name in ("query_fraction", "row_fraction")
    ),
    Clash("bootstrap by query", _among("mvs"), "row_fraction", _below(1.0), "it draws whole queries", "set it to 1"),
    Clash(
        "bootstrap by document", _among("mvs"), "query_fraction", _below(1.0), "it draws each document itself",
        "set it to 1",
    ),
    Clash(
        "feature_fraction_by_node", _below(1.0), "grow", _among("oblivious"), "all nodes of a depth share a condition",
        "use `feature_fraction_by_level`",
    ),
    *(
        Clash(name, test, "criterion", _OLE, cure=_OTHER_CRITERION)
        for name, test in (
            ("monotone", _on), ("extra_trees", _on), ("feature_weights", _on), ("lambda_l1", _above(0.0)),
            ("max_delta_step", _above(0.0)), ("path_smooth", _above(0.0)), ("random_strength", _above(0.0)),
            ("bootstrap", _not("none")),
        )
    ),
    Clash("bootstrap", _not("none"), "leaf", _among("exact"), cure="use `leaf` newton, or set `bootstrap` to none"),
    Clash("grow", _among("oblivious"), "criterion", _OLE, cure="use another `criterion` or `grow`"),
    Clash("categories", _on, "criterion", _OLE, "it works with numbers only", "use `criterion` rwse or se"),
    # losses
    Clash("goals", _on, "criterion", _OLE, "it needs the pairs of one loss", _OTHER_CRITERION),
    Clash("goals", _on, "leaf", _among("exact"), "it needs the pairs of one loss", "leave it out"),
    Clash("goals", _on, "leaves of the loss", _on, "leaf values of its own cannot be mixed", _OTHER_LOSS),
    Clash("goals", _on, "averages", _on, "its rounds fit targets of their own", "use another one, such as ranknet"),
    *(
        Clash(option, test, fact, _on, _SCORES, _OTHER_LOSS)
        for option, test in (("goals", _on), ("position_bias", _not("none")))
        for fact in ("outputs", "link", "steps", "averages")
    ),
    Clash("members", _above(1), "averages", _on, cure="set it to 1"),
    Clash("boosting", _not("gbdt"), "averages", _on, cure="set it to gbdt"),
    Clash("step_search", _not("none"), "steps", _on, "its rounds have several steps", "set it to none"),
    *(
        Clash(name, _on, "link", _on, "they need one score per document, and that is computed from probabilities")
        for name in ("monotone", "offsets")
    ),
    # clusters
    Clash("bootstrap", _among(*_BY_GRADIENT), "cluster", _on, "it needs the gradients of all documents", _ONE_MACHINE),
    Clash("rounds_by", _not("valid"), "cluster", _on, "only the valid split can choose the rounds there", _ONE_MACHINE),
    Clash(
        "refit", _not("none"), "cluster", _on, "each worker has a part of each split",
        "set `refit` to none, since few queries have it by default",
    ),
    Clash("step_search", _not("none"), "cluster", _on, "it needs the loss of all documents", _ONE_MACHINE),
    Clash("base_model", _on, "cluster", _on, "its scores are needed for all documents", _ONE_MACHINE),
    Clash("rows of the loss", _on, "cluster", _on, cure=_ONE_MACHINE),
    Clash("leaves of the loss", _on, "cluster", _on, "the value of a leaf needs all of its documents", _ONE_MACHINE),
    *(
        Clash(name, _among(value), "cluster", _on, "it lists pairs in the order of all documents", _ONE_MACHINE)
        for name, value in (("criterion", "ole"), ("leaf", "exact"))
    ),
    Clash("encoded", _on, "cluster", _on, "codes of categories depend on all documents", _ONE_MACHINE),
    Clash("deviance", _on, "cluster", _on, "it needs the loss of all documents", "stop by another metric"),
)  # fmt: skip


def check_given(parameters: Parameters) -> None:
    """Raise InvalidParameter if two of the given parameters never work together."""
    _check(_facts_of(parameters), CLASHES)


def check_loss(loss: Loss, parameters: Parameters, **more: object) -> None:
    """Raise InvalidParameter if parameters do not work with a loss, or with its criterion and leaves.

    ``more``: other facts of the table, by the names that they have there; only what they do not work with is checked
    then.
    """
    name, limits = f"{spelled('objective')} {loss.name}", loss.limits
    facts: dict[str, object] = {
        "criterion": loss.splits.criterion(parameters.criterion),
        "leaf": "exact" if loss.splits.exact_leaves(parameters.criterion, parameters.leaf) else None,
        "outputs": Fact(name) if loss.n_outputs > 1 else None,
        "steps": Fact(name) if loss.steps_a_round > 1 else None,
        "link": Fact(name) if loss.link != "identity" else None,
        "leaves of the loss": Fact(name) if loss.has_own_leaves() else None,
        "averages": Fact(name, limits.averages) if limits.averages else None,
        "rows of the loss": Fact(name, limits.cluster) if limits.cluster else None,
    }
    _check(
        _facts_of(parameters) | facts | more,
        [one for one in CLASHES if not more or more.keys() & {one.option, one.other}],
    )


def check_cluster(parameters: Parameters, base_model: object) -> None:
    """Raise InvalidParameter if parameters do not work on a cluster, whatever the loss is."""
    facts = _facts_of(parameters) | {"base_model": base_model and Fact(spelled("base_model")), "cluster": CLUSTER}
    _check(facts, [one for one in CLASHES if one.other == "cluster"])


def _facts_of(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters by name, without those that depend on the loss."""
    names = {name for clash in CLASHES for name in (clash.option, clash.other)}
    facts = {name: getattr(parameters, name) for name in names if hasattr(parameters, name)}
    return facts | {"criterion": None, "leaf": None, f"bootstrap by {parameters.bootstrap_by}": parameters.bootstrap}


def _check(facts: Mapping[str, Any], clashes: Iterable[Clash]) -> None:
    """Raise InvalidParameter for the first of ``clashes`` whose two facts are both there."""
    for clash in clashes:
        value, other = facts.get(clash.option), facts.get(clash.other)
        if value is not None and other is not None and clash.when(value) and clash.but(other):
            why = clash.why or next((fact.why for fact in (value, other) if isinstance(fact, Fact) and fact.why), "")
            said = f"{_in_words(clash.option, value)} does not work with {_in_words(clash.other, other)}"
            cure = re.sub(r"`(\w+)`", lambda found: spelled(found[1]), clash.cure)
            raise InvalidParameter(f"{said}{why and ': '}{why}; {cure}")


def _in_words(name: str, value: object) -> str:
    """Return a fact as messages name it: an option with its value, without the entries of a mapping."""
    if isinstance(value, Fact):
        return value.words
    option = spelled(name.partition(" ")[0])
    if isinstance(value, bool) or not isinstance(value, str | float | int):
        return option
    return f"{option} {value}" if option.startswith("--") else f"{option} {value!r}"
