"""Slow, obvious twins of the links: what the score of one document is, from the definitions."""

from decimal import Decimal

from tests.naive import leaf_value

# ---- from the definition, in many digits
# -------------------------------------------------------------------------------


def exact_score(link, outputs):
    """Score of a document by ``link`` with the digits of the caller's decimal context, from its ``outputs``, a list of
    floats."""
    outputs = [Decimal(f) for f in outputs]
    if link == "identity":
        return outputs[0]
    if link.startswith("softmax"):
        masses = [(f - max(outputs)).exp() for f in outputs]
    else:
        at_most = [1 / (1 + (-f).exp()) for f in outputs] + [Decimal(1)]  # P(y <= k)
        masses = [max(p - below, Decimal(0)) for p, below in zip(at_most, [Decimal(0), *at_most], strict=False)]
    values = [2**k - 1 if link.endswith("gain") else k for k in range(len(masses))]
    return sum(v * p for v, p in zip(values, masses, strict=True)) / sum(masses)


# ---- as scores are computed, to the last bit -------------------------------------------------------------------------


def score(link, outputs, exp):
    """Score of a document in floats, in the order that the kernels must keep; ``exp`` is theirs, for x <= 0."""
    if link == "identity":
        return outputs[0]
    if link.startswith("softmax"):
        masses = [exp(f - max(outputs)) for f in outputs]
    else:
        above = [exp(-f) / (1.0 + exp(-f)) if f > 0 else 1.0 / (1.0 + exp(f)) for f in outputs]  # P(y > k)
        masses = [max(p - q, 0.0) for p, q in zip([1.0, *above], [*above, 0.0], strict=True)]
    total = expected = 0.0
    for k, mass in enumerate(masses):
        total += mass
        expected += (2.0**k - 1.0 if link.endswith("gain") else float(k)) * mass
    return expected / total


def outputs_of(forest, row, n_rounds):
    """Sum up the trees of one row, tree t for output t % n_outputs."""
    sums = [forest.base_score] * forest.n_outputs
    for t in range(n_rounds * forest.trees_a_round):
        sums[t % forest.n_outputs] += leaf_value(forest, t, row)
    return sums


def predict(forest, values, exp, n_rounds=None):
    """Score every row of ``values``."""
    rounds = forest.n_rounds if n_rounds is None else n_rounds
    return [score(forest.link, outputs_of(forest, row, rounds), exp) for row in values]
