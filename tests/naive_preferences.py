"""The slow, obvious twin of joining preference pairs to rows: what is right, from the definition."""

from __future__ import annotations


def joined(rows, pairs):
    """Join ``pairs`` (qid, better, worse, weight, probability) to ``rows`` (qid, doc_id or None), by numbers of rows.

    Returns the pairs (row of better, row of worse, weight, probability) by query in the order of the rows, and in each
    query sorted; where the pairs of each query start; and the numbers of the pairs that have no two rows.
    """
    queries = list(dict.fromkeys(qid for qid, _ in rows))
    found = {qid: [] for qid in queries}
    refused = []
    for number, (qid, better, worse, weight, probability) in enumerate(pairs):
        of_better = [k for k, row in enumerate(rows) if row == (qid, better)]
        of_worse = [k for k, row in enumerate(rows) if row == (qid, worse)]
        if len(of_better) == len(of_worse) == 1:
            found[qid].append((of_better[0], of_worse[0], weight, probability))
        else:
            refused.append(number)
    starts, everything = [0], []
    for qid in queries:
        everything += sorted(found[qid])
        starts.append(len(everything))
    return everything, starts, refused


def contradicted(pairs):
    """Count the pairs (better, worse, ..) whose opposite is there too."""
    directions = {(better, worse) for better, worse, *_ in pairs}
    return sum((worse, better) in directions for better, worse, *_ in pairs)
