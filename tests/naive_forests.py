"""Slow, obvious twins of forests whose trees have weights of their own, and of what is done with whole models."""

from tests.naive_samples import bits_of, uniform_of


def dart_weights(
    n_rounds, *, seed=7, drop_rate=0.1, skip_drop=0.5, max_drop=50, uniform_drop=False, share=1.0, members=1, member=0
):
    """The weights of all rounds of a member in the end, and which rounds each of them dropped; ``share``: 1, or the
    learning rate."""
    weights = []
    drops = []
    for n in range(n_rounds):
        numbers = [uniform_of(bits_of(seed, 8, n * members + member + 1, i)) for i in range(n + 1)]
        dropped = []
        if n and numbers[0] >= skip_drop:
            rate = min(drop_rate, max_drop / n) if max_drop else drop_rate
            mean = sum(weights) / n
            dropped = [i for i in range(n) if numbers[i + 1] < rate * (1 if uniform_drop else weights[i] / mean)]
            if max_drop:
                dropped = sorted(sorted(dropped, key=lambda i: numbers[i + 1])[:max_drop])
        k = len(dropped)
        for i in dropped:
            weights[i] *= k / (k + share)
        weights.append(1 / (k + share) if k else 1.0)
        drops.append(dropped)
    return weights, drops
