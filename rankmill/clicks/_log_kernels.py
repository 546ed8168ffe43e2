"""Put the rows of a click log together to result lists."""

from __future__ import annotations

from rankmill.foundation.kernels.compiling import kernel


@kernel
def run_starts(offsets, data, session, within, policy, out):
    """Write the first row of each run of rows that are alike in query (text), session, list and policy; return their number."""
    n = 0
    for i in range(session.shape[0]):
        same = i > 0 and session[i] == session[i - 1] and within[i] == within[i - 1] and policy[i] == policy[i - 1]
        if same:
            length = offsets[i + 1] - offsets[i]
            same = offsets[i] - offsets[i - 1] == length
            k = 0
            while same and k < length:
                same = data[offsets[i] + k] == data[offsets[i - 1] + k]
                k += 1
        if not same:
            out[n] = i
            n += 1
    return n


@kernel
def expand(order, first, out, new_first):
    """Write the rows ``first[r]:first[r + 1]`` of the runs r of ``order``, and where each begins (runs + 1,)."""
    at = 0
    for j in range(order.shape[0]):
        new_first[j] = at
        for i in range(first[order[j]], first[order[j] + 1]):
            out[at] = i
            at += 1
    new_first[order.shape[0]] = at


@kernel
def arrange(order, first, query, session, within, policy, rank, document, place, list_start, list_run, mixed):
    """Join the runs of a list and sort its rows by rank and document; return the number of lists.

    order, first   runs by query, session and list; rows ``first[r]:first[r + 1]`` of run r
    place          (rows,) OUT the rows in the new order
    list_start     (runs + 1,) OUT; list_run (runs,) OUT a run of each list
    mixed          (runs,) OUT whether the list has several policies
    """
    lists = at = 0
    for j in range(order.shape[0]):
        r = order[j]
        before = order[max(j - 1, 0)]
        if j == 0 or query[r] != query[before] or session[r] != session[before] or within[r] != within[before]:
            if lists:
                _sort_rows(place, list_start[lists - 1], at, rank, document)
            list_start[lists], list_run[lists], mixed[lists] = at, r, 0
            lists += 1
        elif policy[r] != policy[before]:
            mixed[lists - 1] = 1
        for i in range(first[r], first[r + 1]):
            place[at] = i
            at += 1
    if lists:
        _sort_rows(place, list_start[lists - 1], at, rank, document)
    list_start[lists] = at
    return lists


@kernel
def _sort_rows(place, low, high, rank, document):
    """Sort ``place[low:high]`` by rank and document (Shell's method; lists are short and mostly sorted)."""
    gap = 1
    while gap < (high - low) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(low + gap, high):
            i, j = place[k], k
            while j - gap >= low and (
                rank[place[j - gap]] > rank[i]
                or (rank[place[j - gap]] == rank[i] and document[place[j - gap]] > document[i])
            ):
                place[j] = place[j - gap]
                j -= gap
            place[j] = i
        gap //= 3


@kernel
def merge_rows(list_start, place, mixed, rank, document, clicked, numbers, seen, kept, out, counts, conflict):
    """Merge rows of one list, rank and document, and leave out contradictory lists; return (lists kept, rows kept).

    A merged impression was clicked if one of its rows was; of further numbers (k, rows) it has the greatest.

    seen      (documents,) of -1, scratch
    kept      (lists,) OUT the number of each list that is kept
    out       start (lists + 1,), document, rank, clicked (rows,), numbers (k, rows) OUT
    counts    OUT rows merged, lists left out
    conflict  OUT of the first list left out: kind (1: two documents at a rank, 2: a document at two ranks, 3: two policies),
              list, and the two rows
    """
    start, documents, ranks, clicks, values = out
    lists = at = 0
    for q in range(mixed.shape[0]):
        begin, kind, one, other = at, 3 * mixed[q], place[list_start[q]], place[list_start[q + 1] - 1]
        merged = 0
        for p in range(list_start[q], list_start[q + 1]):
            i = place[p]
            d = document[i]
            if at > begin and ranks[at - 1] == rank[i] and documents[at - 1] == d:
                merged += 1
                clicks[at - 1] |= clicked[i]
                for c in range(numbers.shape[0]):
                    if not values[c, at - 1] >= numbers[c, i]:  # also if it is missing
                        values[c, at - 1] = numbers[c, i] if numbers[c, i] == numbers[c, i] else values[c, at - 1]
                continue
            if kind == 0 and at > begin and ranks[at - 1] == rank[i]:
                kind, one, other = 1, place[p - 1], i
            if kind == 0 and seen[d] == q:
                kind, other = 2, i
                for before in range(list_start[q], p):
                    if document[place[before]] == d:
                        one = place[before]
            seen[d] = q
            documents[at], ranks[at], clicks[at] = d, rank[i], clicked[i]
            for c in range(numbers.shape[0]):
                values[c, at] = numbers[c, i]
            at += 1
        if kind:
            at = begin
            if counts[1] == 0:
                conflict[0], conflict[1], conflict[2], conflict[3] = kind, q, one, other
            counts[1] += 1
        else:
            counts[0] += merged
            start[lists], kept[lists] = begin, q
            lists += 1
    start[lists] = at
    return lists, at


@kernel(allocates=True)
def number_documents(query, start, document, number, found, document_start):
    """Give numbers to the documents of each query, which replace those in ``document`` (rows,); return how many there are.

    query           (lists,) ascending from 0 without gaps
    number          (documents,) scratch
    found           (rows,) OUT the documents by number, ascending within a query
    document_start  (queries + 1,) OUT
    """
    for d in range(number.shape[0]):
        number[d] = -1
    total = list_ = 0
    while list_ < query.shape[0]:
        q, first_list, first = query[list_], list_, total
        document_start[q] = first
        while list_ < query.shape[0] and query[list_] == q:
            for i in range(start[list_], start[list_ + 1]):
                d = document[i]
                if number[d] < first:
                    number[d] = first
                    found[total] = d
                    total += 1
            list_ += 1
        found[first:total].sort()
        for k in range(first, total):
            number[found[k]] = k
        for i in range(start[first_list], start[list_]):
            document[i] = number[document[i]]
    if query.shape[0]:
        document_start[query[-1] + 1] = total
    return total
