"""Loops of the binning: how many bins a capacity needs, the even split of a run of values, and the bin of a value."""

from rankmill.foundation.kernels.compiling import kernel


@kernel
def _reach(cumulative, start, capacity):
    """Return the end of the widest bin from ``start``: mass ``capacity`` at most, but always one value."""
    limit = cumulative[start] + capacity
    low, high = start + 1, cumulative.shape[0] - 1
    while low < high:
        middle = (low + high + 1) // 2
        if cumulative[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def count_distinct(values):
    """Count the distinct values of an ascending array without NaN."""
    count = 0
    for i in range(values.shape[0]):
        count += i == 0 or values[i] != values[i - 1]
    return count


@kernel
def cumulate(values, cumulative):
    """cumulative[j] = how many of the ascending ``values`` lie before the j-th distinct one; the last is their number."""
    j = 0
    for i in range(values.shape[0]):
        if i == 0 or values[i] != values[i - 1]:
            cumulative[j] = i
            j += 1
    cumulative[j] = values.shape[0]


@kernel
def heavier(cumulative, capacity, out):
    """Write the places of the values heavier than ``capacity`` into ``out``; returns their number."""
    found = 0
    for i in range(cumulative.shape[0] - 1):
        if cumulative[i + 1] - cumulative[i] > capacity:
            out[found] = i
            found += 1
    return found


@kernel
def count_bins(cumulative, capacity, limit):
    """Count the fewest bins of mass ``capacity`` or of one value that hold all; stops above ``limit``."""
    start, bins = 0, 0
    while start < cumulative.shape[0] - 1 and bins <= limit:
        start = _reach(cumulative, start, capacity)
        bins += 1
    return bins


@kernel
def fill_bins(cumulative, capacity, ends):
    """Write the ends of those bins into ``ends``; returns their number."""
    start, bins = 0, 0
    while start < cumulative.shape[0] - 1:
        start = _reach(cumulative, start, capacity)
        ends[bins] = start
        bins += 1
    return bins


@kernel
def split_run(cumulative, start, stop, capacity, earliest, ends):
    """Cut the values ``start:stop`` into ``len(ends)`` bins as even as ``capacity`` allows.

    ``earliest[j]`` is the first place where bin j may end so that the bins behind it still hold the rest; found from
    the back.  Then each bin takes its share of what is left, moved into the places that are allowed.
    """
    n = ends.shape[0]
    earliest[n - 1] = stop
    for j in range(n - 2, -1, -1):
        floor = cumulative[earliest[j + 1]] - capacity
        low, high = start, earliest[j + 1] - 1
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] >= floor:
                high = middle
            else:
                low = middle + 1
        earliest[j] = low
    begin = start
    for j in range(n - 1):
        target = cumulative[begin] + (cumulative[stop] - cumulative[begin]) // (n - j)
        low, high = begin, stop
        while low < high:
            middle = (low + high + 1) // 2
            if cumulative[middle] <= target:
                low = middle
            else:
                high = middle - 1
        if low < stop and cumulative[low + 1] - target < target - cumulative[low]:
            low += 1
        # every bin holds a value, and so do the n - 1 - j bins behind it
        low = max(low, begin + 1, earliest[j])
        begin = min(low, _reach(cumulative, begin, capacity), stop - (n - 1 - j))
        ends[j] = begin
    ends[n - 1] = stop


@kernel
def find_bins(values, tables, out):
    """out[r, f] = 1 + number of edges of f below values[r, f]; 0 for NaN.

    ``tables`` (F, 255) holds the edges, filled up with +inf, which is below nothing: eight steps without a branch.
    Blocks of rows keep a row-major block in cache while its columns are walked.
    """
    rows, features = values.shape
    for first in range(0, rows, 256):
        last = min(first + 256, rows)
        for f in range(features):
            edges = tables[f]
            for r in range(first, last):
                x = values[r, f]
                place = 0
                place += 128 * (edges[127] < x)
                place += 64 * (edges[place + 63] < x)
                place += 32 * (edges[place + 31] < x)
                place += 16 * (edges[place + 15] < x)
                place += 8 * (edges[place + 7] < x)
                place += 4 * (edges[place + 3] < x)
                place += 2 * (edges[place + 1] < x)
                place += 1 * (edges[place] < x)
                out[r, f] = (place + 1) * (x == x)


@kernel
def _write_number(number, out, end):
    """Write the digits of ``number`` >= 0 at ``out[end:]``; returns the new end."""
    digits, rest = 1, number // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for i in range(digits):
        out[end + digits - 1 - i] = 48 + number % 10
        number //= 10
    return end + digits


@kernel
def write_letor(rows, decimals, grades, starts, first_query, labels, label_starts, out):
    """Write the lines ``grade qid:Q 1:v ... #docid = DQ-n`` of ``rows`` into ``out``; returns how many bytes they take.

    ``rows`` (n, F) holds the values times ``10 ** decimals``; ``labels`` the bytes "1:", "2:", ... one after the other.
    """
    end = 0
    for q in range(starts.shape[0] - 1):
        for r in range(starts[q], starts[q + 1]):
            end = _write_number(grades[r], out, end)
            for letter in b" qid:":
                out[end] = letter
                end += 1
            end = _write_number(first_query + q, out, end)
            for f in range(rows.shape[1]):
                out[end] = 32
                end += 1
                for i in range(label_starts[f], label_starts[f + 1]):
                    out[end] = labels[i]
                    end += 1
                value, places = rows[r, f], decimals[f]
                scale = 10**places
                end = _write_number(value // scale, out, end)
                if places > 0:
                    out[end] = 46
                    fraction = value % scale
                    for i in range(places):
                        out[end + places - i] = 48 + fraction % 10
                        fraction //= 10
                    end += places + 1
            for letter in b" #docid = D":
                out[end] = letter
                end += 1
            end = _write_number(first_query + q, out, end)
            out[end] = 45
            end = _write_number(r - starts[q] + 1, out, end + 1)
            out[end] = 10
            end += 1
    return end
