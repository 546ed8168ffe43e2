"""Draw sessions: which query, which list, which clicks.

Every draw depends on the seed, the session and the rank alone.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.randoms import random_bits, uniform

# elements of the sequence of a session's key
_QUERY, _KIND, _LOGGER, _PAIR, _SHUFFLE, _CLICKS = 1, 2, 3, 4, 5, 6


@kernel(allocates=True)
def draw_queries(seed, first, cumulative, out):
    """Set out[i] to the query of session ``first + i``.

    Query q has probability (cumulative[q] - cumulative[q - 1]) / total.
    """
    total = cumulative[-1]
    for i in range(out.shape[0]):
        key = random_bits(seed, first + i)
        out[i] = np.searchsorted(cumulative, uniform(random_bits(key, _QUERY)) * total, side="right")


@kernel
def draw_sessions(seed, session, query, start, document_start, rankings, shares, relevance, users, scratch, out):
    """Draw the lists and clicks of sessions.

    session, query   (lists,) number of the session, its query
    start            (lists + 1,) where its impressions go
    document_start   (queries + 1,); rankings (loggers, documents) are documents of all queries in the order of each
                     logger
    shares           share of random lists, then of lists with two neighbours swapped
    relevance        (documents,) probability of a click on an examined document
    out              policy (lists,), document, rank, clicked (impressions,)
    """
    policies, documents, ranks, clicked = out
    loggers = rankings.shape[0]
    for i in range(session.shape[0]):
        key = random_bits(seed, session[i])
        at, length = start[i], start[i + 1] - start[i]
        of_query, n = document_start[query[i]], document_start[query[i] + 1] - document_start[query[i]]
        logger = min(np.int64(uniform(random_bits(key, _LOGGER)) * loggers), loggers - 1)
        kind = uniform(random_bits(key, _KIND))
        if kind < shares[0]:
            policies[i] = 2 * loggers
            _shuffle(random_bits(key, _SHUFFLE), of_query, n, length, scratch, documents[at : at + length])
        else:
            policies[i] = logger
            copy_to(documents[at : at + length], rankings[logger, of_query : of_query + length])
            if kind < shares[0] + shares[1]:
                policies[i] = loggers + logger
                if length > 1:
                    above = min(np.int64(uniform(random_bits(key, _PAIR)) * (length - 1)), length - 2) + at
                    documents[above], documents[above + 1] = documents[above + 1], documents[above]
        _click(random_bits(key, _CLICKS), documents[at : at + length], relevance, users, clicked[at : at + length])
        for k in range(length):
            ranks[at + k] = k + 1


@kernel
def _shuffle(key, of_query, n, length, scratch, out):
    """Write the first ``length`` of a random permutation of the ``n`` documents from ``of_query`` on (Fisher-Yates)."""
    for d in range(n):
        scratch[d] = of_query + d
    for k in range(length):
        other = k + min(np.int64(uniform(random_bits(key, k + 1)) * (n - k)), n - k - 1)
        scratch[k], scratch[other] = scratch[other], scratch[k]
        out[k] = scratch[k]


@kernel
def _click(key, documents, relevance, users, out):
    """Go down the list while the user continues.

    P(click at k) = examination[k, last click] (floor[k] + slope[k] relevance).
    """
    last, going = 0, True
    for k in range(documents.shape[0]):
        out[k] = 0
        if going:
            chance = users.examination[k, last] * (users.floor[k] + users.slope[k] * relevance[documents[k]])
            if uniform(random_bits(key, 2 * k + 1)) < chance:
                out[k], last = 1, k + 1
                going = uniform(random_bits(key, 2 * k + 2)) < users.continuation[k]
