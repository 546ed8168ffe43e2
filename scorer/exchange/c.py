"""A forest as one C99 file without dependencies: tables of nodes, and a function that walks them.

``double rankmill_score(const float *x)`` compares ``x <= cut`` in float32 and adds in double, tree after tree, as prediction
here does, so that scores have the same bits wherever the compiler keeps to IEEE 754 (no -ffast-math, and no x87 registers:
FLT_EVAL_METHOD 0).  Numbers are hexadecimal, so that none is rounded.  A split by a set of categories looks for the value among
the numbers of its categories.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankmill.scorer.exchange.categories import category_numbers, text_notes
from rankmill.scorer.exchange.conversion import SAME_BITS, ConvertedModel, PlainTree, plain_trees
from rankmill.scorer.forest import Forest
from rankmill.scorer.links import class_values

EXP_ERROR = (
    1e-12  # error of a score through a link, over the highest grade's value: exp functions differ in the last bits
)

_WALK = """\
static double tree_value(const float *x, int node)
{
    while (nodes[node].feature >= 0) {
        const float value = x[nodes[node].feature];
        /* a missing value (NaN) is neither <= nor >: the comparison chosen sends it where it has to go */
        const int left = nodes[node].missing_left ? !(value > nodes[node].cut) : (value <= nodes[node].cut);
        node = left ? nodes[node].left : nodes[node].right;
    }
    return nodes[node].value;
}
"""

_WALK_WITH_SETS = """\
static int has_member(const struct node *node, float value)
{
    int k;
    for (k = node->first; k < node->end; ++k)
        if (members[k] == value)
            return 1;
    return 0;
}

static double tree_value(const float *x, int node)
{
    while (nodes[node].feature >= 0) {
        const float value = x[nodes[node].feature];
        int left;
        if (isnan(value))
            left = nodes[node].missing_left;
        else if (nodes[node].end > 0)
            left = has_member(&nodes[node], value);
        else
            left = value <= nodes[node].cut;
        node = left ? nodes[node].left : nodes[node].right;
    }
    return nodes[node].value;
}
"""

_IDENTITY = """\
double rankmill_score(const float *x)
{
    double sum = BASE_SCORE;
    int tree;
    for (tree = 0; tree < N_TREES; ++tree)
        sum += tree_value(x, roots[tree]);
    return sum;
}
"""

_OUTPUTS = """\
static void add_outputs(const float *x, double *outputs)
{
    int tree;
    for (tree = 0; tree < N_OUTPUTS; ++tree)
        outputs[tree] = BASE_SCORE;
    for (tree = 0; tree < N_TREES; ++tree)
        outputs[tree % N_OUTPUTS] += tree_value(x, roots[tree]);
}
"""

_SOFTMAX = """\
/* the expected worth of a document's grade, whose probabilities are the softmax of the outputs */
double rankmill_score(const float *x)
{
    double outputs[N_OUTPUTS], greatest, total = 0.0, score = 0.0;
    int k;
    add_outputs(x, outputs);
    greatest = outputs[0];
    for (k = 1; k < N_OUTPUTS; ++k)
        if (outputs[k] > greatest)
            greatest = outputs[k];
    for (k = 0; k < N_OUTPUTS; ++k) {
        const double mass = exp(outputs[k] - greatest);
        total += mass;
        score += worth[k] * mass;
    }
    return score / total;
}
"""

_ORDINAL = """\
/* the expected worth of a document's grade, where output k is the logit of its being at most k */
double rankmill_score(const float *x)
{
    double outputs[N_OUTPUTS], before = 1.0, total = 0.0, score = 0.0;
    int k;
    add_outputs(x, outputs);
    for (k = 0; k <= N_OUTPUTS; ++k) {
        double above = 0.0, mass;
        if (k < N_OUTPUTS) {
            const double e = exp(-fabs(outputs[k]));
            above = (outputs[k] > 0.0 ? e : 1.0) / (1.0 + e);
        }
        mass = before > above ? before - above : 0.0;
        total += mass;
        score += worth[k] * mass;
        before = above;
    }
    return score / total;
}
"""


def write(forest: Forest, name: str) -> ConvertedModel:
    """Return ``forest`` as the source of ``rankmill_score``; C can express every forest."""
    linked = forest.link != "identity"
    walk = _WALK_WITH_SETS if forest.categories else _WALK
    text = "\n".join([*_head(forest, name, linked=linked), *_tables(forest), walk])
    if linked:
        text += "\n" + _OUTPUTS + "\n" + (_ORDINAL if forest.link.startswith("ordinal") else _SOFTMAX)
        bound = EXP_ERROR * float(class_values(forest.link, forest.n_outputs).max())
        exactness = (
            f"outputs in float64 to the bit; through exp of the C library, scores within {bound:.2g} of those here"
        )
    else:
        text, bound, exactness = text + "\n" + _IDENTITY, 0.0, SAME_BITS
    notes = ["link it with -lm: the scores go through exp"] if linked else []
    notes += text_notes(forest)
    return ConvertedModel(data=text.encode("ascii"), exactness=exactness, bound=bound, notes=tuple(notes))


def _head(forest: Forest, name: str, *, linked: bool) -> Iterator[str]:
    shown = "".join(sign if sign.isascii() and sign.isprintable() and sign not in "*/?\\" else "_" for sign in name)
    yield f"/* {shown}: {forest.n_trees} trees over {forest.n_features} features, written by rankmill."
    yield " *"
    yield " * double rankmill_score(const float *x): the score of one document.  x holds its features in the order of"
    yield " * rankmill_feature_names; NaN is a missing value.  Compile it without -ffast-math, which forgets NaN. */"
    yield ""
    yield "#include <math.h>"
    yield ""
    yield f"#define N_TREES {forest.n_trees}"
    yield f"#define BASE_SCORE {_double(forest.base_score)}"
    if linked:
        yield f"#define N_OUTPUTS {forest.n_outputs}"
    yield ""
    yield "double rankmill_score(const float *x);"
    yield ""
    yield f"const int rankmill_n_features = {forest.n_features};"
    yield f"const char *const rankmill_feature_names[{forest.n_features}] = {{"
    for feature in forest.feature_names:
        yield f'    "{_escaped(feature)}",'
    yield "};"
    yield ""
    for f, known in category_numbers(forest).items():
        if known.texts:
            yield f"/* the categories 0, 1, .. of x[{f}], {len(known.texts)} of them; other categories are any other number */"
            yield f"const char *const rankmill_categories_{f}[{len(known.texts)}] = {{"
            for text in known.texts:
                yield f'    "{_escaped(text)}",'
            yield "};"
            yield ""
    if linked:
        values = ", ".join(_double(value) for value in class_values(forest.link, forest.n_outputs).tolist())
        yield f"static const double worth[] = {{{values}}}; /* of each grade, from 0 on */"
        yield ""


def _tables(forest: Forest) -> Iterator[str]:
    known = category_numbers(forest)
    members: list[int] = []
    more = " int first, end;" if known else ""
    yield "/* value: what a leaf adds; feature: -1 at a leaf; x <= cut goes left; left, right: nodes */"
    if known:
        yield "/* where end > 0, the categories members[first] to members[end - 1] go left instead */"
    yield f"static const struct node {{ double value; float cut; int feature, left, right; unsigned char missing_left;{more} }} nodes[] = {{"
    start, roots = 0, []
    for tree in plain_trees(forest):
        roots.append(start)
        for node, row in enumerate(_rows(tree, start)):
            if known:
                own = known[int(tree.feature[node])].of(tree.sets[node]) if node in tree.sets else []
                first, end = (len(members), len(members) + len(own)) if own else (0, 0)
                members += own
                yield f"    {{{row}, {first}, {end}}},"
            else:
                yield f"    {{{row}}},"
        start += len(tree.feature)
    if not roots:  # an array in C is not empty
        yield f"    {{0.0, 0.0f, -1, 0, 0, 0{', 0, 0' * bool(known)}}},"
    yield "};"
    yield ""
    if known:
        yield f"static const float members[{max(len(members), 1)}] = {{"
        for first in range(0, max(len(members), 1), 16):
            yield "    " + ", ".join(f"{number}.0f" for number in (members or [0])[first : first + 16]) + ","
        yield "};"
        yield ""
    yield f"static const int roots[{max(len(roots), 1)}] = {{"
    for first in range(0, max(len(roots), 1), 16):
        yield "    " + ", ".join(map(str, (roots or [0])[first : first + 16])) + ","
    yield "};"
    yield ""


def _rows(tree: PlainTree, start: int) -> Iterator[str]:
    columns = (tree.value, tree.cut, tree.feature, tree.left, tree.right, tree.missing_left)
    for value, cut, feature, left, right, missing in zip(*(column.tolist() for column in columns), strict=True):
        if feature < 0:
            yield f"{_double(value)}, 0.0f, -1, 0, 0, 0"
        else:
            yield f"0.0, {_float(cut)}, {feature}, {start + left}, {start + right}, {int(missing)}"


def _double(value: float) -> str:
    return value.hex()


def _float(value: float) -> str:
    if np.isnan(value):  # a set decides
        return "0.0f"
    if np.isinf(value):
        return "INFINITY" if value > 0.0 else "-INFINITY"
    return f"{value.hex()}f"


def _escaped(text: str) -> str:
    """Return ``text`` as the inside of a C string: UTF-8, with octal escapes for special bytes; no trigraphs."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
