"""The options of reading, ingest and bins, declared once.

Nothing heavy is imported here: the command line reads this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, get_args

from rankmill.foundation.cluster.options import ClusterOptions
from rankmill.foundation.cores import available_cores
from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import group, option, option_like, options, spelled
from rankmill.foundation.units import MIN_MEMORY
from rankmill.pipeline.dataset.goals import checked_goals

if TYPE_CHECKING:
    from rankmill.pipeline.group.query_splits import QuerySplits

Format = Literal["auto", "letor", "csv", "tsv", "parquet", "arrow", "jsonl", "run"]
Absent = Literal["zero", "missing"]
Labels = Literal["grade", "real"]
NegativeGrades = Literal["reject", "zero", "unjudged"]
Unjudged = Literal["keep", "zero", "reject"]
Aggregate = Literal["mean", "median", "max", "majority", "latest", "heaviest"]
Words = tuple[tuple[str, int], ...]

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
WITH_LABEL = ("mean", "median")  # aggregates that store the number before rounding as label

MAX_FEATURES = 65536
MAX_GRADE = 2**31 - 1
MOST_CATEGORIES = 100_000  # of a feature
MAX_BUCKETS = 4096
MIN_MAX_BIN, MAX_BIN = 15, 255  # value bins of a feature
LEAST_BINS = 2  # of one feature
N_SIGNAL = 10  # features with a signal in generated judgments
MAX_SEED = 2**63 - 1  # of generated judgments
DEFAULT_BLOCK_BYTES = 16 << 20
USUAL_DELIMITERS = ";\t|,"
MEMORY = "Maximum memory of the process, 512MB or more."  # used by several commands and option groups

_SPLITS = "Splits"
OTHER_FILES = "Judgments from other files"
_MEANING = "What the input means"
_GRADES = "Grades"
_LIMITS = "Limits"
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")


def _columns(texts: Iterable[str]) -> Mapping[str, str]:
    from rankmill.pipeline.read.column_roles import parse_columns

    return parse_columns(texts)


def _delimiter(given: str) -> str:
    r"""Return the delimiter that ``given`` stands for.

    >>> _delimiter("tab"), _delimiter(";")
    ('\t', ';')
    """
    found = "\t" if given == "tab" else given
    if len(found) != 1 or not found.isascii() or found.isalnum() or found in '"\r\n.+-\0':
        raise InputError(f"{spelled('delimiter')} must be one character, such as ';' or '|', or tab, got {given!r}")
    return found


def _one_character(given: str) -> str:
    if len(given) > 1:
        raise InputError(f"{spelled('split_prefix')} must be one character, such as /, got {given!r}")
    return given


def _names(texts: Iterable[str]) -> tuple[str, ...]:
    """Read texts such as ``title,debug_*``.

    >>> _names(["title, debug_*", "brand"])
    ('title', 'debug_*', 'brand')
    """
    return tuple(name for text in texts for piece in text.split(",") if (name := piece.strip()))


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Keep names as they were given.

    The names of the columns decide where a comma ends a name (`rankmill.foundation.cures.named`).
    """
    return tuple(text for text in texts if text.strip())


def _numbers(texts: Iterable[str]) -> tuple[int, ...]:
    """Read texts such as ``10,100``.

    >>> _numbers(["10, 100", "7"])
    (10, 100, 7)
    """
    pieces = [piece.strip() for text in texts for piece in text.split(",")]
    for piece in pieces:
        if not re.fullmatch("[0-9]{1,9}", piece):
            raise InputError(f"{spelled('categorical')}: expected numbers such as 10,100, found {piece!r}")
    return tuple(map(int, pieces))


def _checked_categories(numbers: Iterable[int]) -> tuple[int, ...]:
    found = tuple(numbers)
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= MOST_CATEGORIES:
            raise InputError(
                f"{spelled('categorical')}: a feature has 2 to {MOST_CATEGORIES:,} categories, got {number}"
            )
    if len(found) > MAX_FEATURES:
        raise InputError(f"{spelled('categorical')}: {len(found):,} features; {MAX_FEATURES:,} at most")
    return found


def _bins_of(texts: Iterable[str]) -> Mapping[str, int]:
    """Read texts such as ``brand=50,price=63``.

    >>> _bins_of(["brand=50, price, $=63"])
    {'brand': 50, 'price, $': 63}
    """
    found: dict[str, int] = {}
    for piece in (piece.strip() for text in texts for piece in re.sub("(=[0-9]+) *,", "\\1\0", text).split("\0")):
        name, equals, number = (word.strip() for word in piece.rpartition("="))
        if not equals or not name or not re.fullmatch("[0-9]{1,9}", number):
            raise InputError(f"{spelled('max_bin_of')}: expected pairs such as brand=50,price=63, found {piece!r}")
        if name in found:
            raise InputError(f"{spelled('max_bin_of')} names {name!r} twice")
        found[name] = int(number)
    return found


def _checked_bins(max_bin_of: Mapping[str, int]) -> Mapping[str, int]:
    for name, most in max_bin_of.items():
        if isinstance(most, bool) or not isinstance(most, int) or not LEAST_BINS <= most <= MAX_BIN:
            raise InputError(f"{spelled('max_bin_of')}: {name!r} must have {LEAST_BINS} to {MAX_BIN} bins, got {most}")
    return dict(max_bin_of)


def parse_words(text: str) -> Words:
    """Read ``perfect=4,good=2,bad=0``.

    >>> parse_words("perfect=4, bad=0,-2=0")
    (('perfect', 4), ('bad', 0), ('-2', 0))

    Raises
    ------
    InputError
        The text is malformed.
    """
    found = []
    for part in text.split(","):
        word, equals, grade = (piece.strip() for piece in part.rpartition("="))
        if not equals or not word or not re.fullmatch("-?[0-9]{1,10}", grade):
            raise InputError(
                f"{spelled('grades')}: expected pairs such as perfect=4,good=2,bad=0, found {part.strip()!r}"
            )
        found.append((word, int(grade)))
    return tuple(found)


def word_key(word: str) -> str | float:
    """Return the key for comparing words: the number, or the word in lower case without surrounding blanks.

    >>> word_key(" Good"), word_key("2.0 ")
    ('good', 2.0)
    """
    trimmed = word.strip(" \t")
    return float(trimmed) if _NUMBER.fullmatch(trimmed) else trimmed.casefold()


def check_words(words: Words, negative: NegativeGrades, highest: int) -> None:
    """Raise InputError if a word occurs twice, or its grade is invalid."""
    seen: set[str | float] = set()
    for word, grade in words:
        key = word_key(word)
        if key in seen:
            raise InputError(
                f"{spelled('grades')} has {word!r} twice (ignoring case and surrounding blanks); remove one"
            )
        seen.add(key)
        if grade > highest:
            limit = f"{spelled('max_grade')} {highest}" if highest < MAX_GRADE else f"{MAX_GRADE}, the highest grade"
            raise InputError(f"{spelled('grades')} maps {word!r} to {grade}, above {limit}")
        if grade < 0 and negative == "reject":
            raise InputError(
                f"{spelled('grades')} maps {word!r} to {grade}, but a grade is 0 or more; to accept"
                f" negative grades: {spelled_with('negative_grades', 'zero')} (or unjudged)"
            )


def _ordered(grades: Mapping[str, int] | Iterable[tuple[str, int]]) -> Words:
    """Sort pairs of word and grade: by grade from high to low, then by word."""
    pairs = grades.items() if isinstance(grades, Mapping) else grades
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def _shares(texts: Iterable[str]) -> Mapping[str, float]:
    from rankmill.pipeline.group.query_splits import parse_shares

    return parse_shares(",".join(texts))


def _split_times(texts: Iterable[str]) -> Mapping[str, str]:
    from rankmill.pipeline.group.query_splits import parse_split_time

    return parse_split_time(",".join(texts))


def _times(given: Mapping[str, str] | None) -> Mapping[str, str] | None:
    from rankmill.pipeline.group.query_splits import checked_split_time

    return None if given is None else checked_split_time(given)


@options
class ReadOptions:
    """How to read the input.

    Attributes
    ----------
    grade_required
        Whether rows are judgments.  Otherwise they are candidates: ``grade`` is optional, and optional columns are
        ignored.
    ungraded
        Whether a table of judgments may lack ``grade`` and ``label``, because pairs replace them.  Grades are 0 then.
    known_features
        Columns of a table that are known to be features; no other role is inferred for them.
    time_optional
        Whether the column of times is optional.
    judgments_alone
        Whether a table has judgments without features: qid, doc_id and grade are required, other columns are ignored.
    columns_elsewhere
        Whether columns that ``columns`` names may be missing, as they may be in separate judgments.
    of_goals
        The options by which goals are read if the grades of the rows are ignored; None: these.
    """

    absent: Absent = option(
        default="zero",
        help="How to read a feature that a line of LETOR text omits: as zero, or as missing.",
        choices=get_args(Absent),
        panel=_MEANING,
    )
    index_base: Literal[0, 1] = option(
        default=1, help="Number of the first feature in LETOR text.", least=0, most=1, panel=_MEANING
    )
    n_features: int | None = option(
        default=None,
        help="Number of features in LETOR text; default: the highest index seen.",
        least=1,
        most=MAX_FEATURES,
        panel=_MEANING,
    )
    labels: Labels = option(
        default="grade",
        help="Read the first number of a line of LETOR text as a grade or as a real label.",
        choices=get_args(Labels),
        panel=_GRADES,
    )
    delimiter: str | None = option(
        default=None,
        help="Character between the columns of CSV and TSV files, such as ';' or tab; default: the one in the first "
        "line.",
        metavar="CHAR",
        convert=_delimiter,
        panel=_MEANING,
    )
    decimal_comma: bool = option(
        default=False,
        help="Read 12,50 in the features of CSV and TSV files as 12.5; a cell with a point is an error then.",
        panel=_MEANING,
    )
    columns: Mapping[str, str] = option(
        default_factory=dict,
        help="Map columns of tables to their roles: qid=query_id,doc_id=url,grade=rel; repeat for more.",
        metavar="PART=NAME,..",
        read=_columns,
        repeat=True,
        panel=_MEANING,
    )
    ignore: tuple[str, ...] = option(
        default=(),
        help="Columns of tables to ignore: title,debug_*; repeat for more.",
        metavar="NAME,..",
        read=_texts,
        repeat=True,
        panel=_MEANING,
    )
    categorical: tuple[str, ...] = option(
        default=(),
        help="Features that are categories, text or numbers: brand,country, or f7 in LETOR text; repeat for more.",
        metavar="NAME,..",
        read=_texts,
        repeat=True,
        convert=tuple,
        panel=_MEANING,
    )
    goals: tuple[str, ...] = option(
        default=(),
        help="Columns of tables with further grades, such as purchases, to be ranked by, too: bought,fresh.",
        metavar="NAME,..",
        read=_names,
        repeat=True,
        convert=checked_goals,
        panel=_GRADES,
    )
    grades: Mapping[str, int] | Words = option(
        default=(),
        help="Map words to grades: perfect=4,good=2,bad=0; repeat for more.",
        metavar="WORD=GRADE,..",
        read=lambda texts: parse_words(",".join(texts)),
        repeat=True,
        convert=_ordered,
        panel=_GRADES,
    )
    negative_grades: NegativeGrades = option(
        default="reject",
        help="How to treat negative grades: reject the row, read as zero, or as not judged.",
        choices=get_args(NegativeGrades),
        panel=_GRADES,
    )
    unjudged: Unjudged = option(
        default="keep",
        help="How to treat rows without a grade: keep them as candidates, read the grade as zero, or reject them.",
        choices=get_args(Unjudged),
        panel=_GRADES,
    )
    time_column: str | None = option(
        default=None,
        help="Column with the time of each row: ISO text or seconds since 1970.",
        metavar="NAME",
        panel=_MEANING,
    )
    max_grade: int | None = option(
        default=None, help="Maximum grade; default: the highest seen.", least=0, most=MAX_GRADE, panel=_GRADES
    )
    grade_required: bool = True
    ungraded: bool = False
    time_optional: bool = False
    judgments_alone: bool = False
    columns_elsewhere: bool = False
    known_features: frozenset[str] = frozenset()
    of_goals: ReadOptions | None = None

    def check_together(self) -> None:
        """Raise InputError if values do not go together."""
        from rankmill.pipeline.read.column_roles import check_columns

        if self.columns or self.ignore:
            check_columns(self.columns, self.ignore)
        if self.grades:
            check_words(self.words, self.negative_grades, self.highest_grade)
            if self.labels == "real":
                raise InputError(
                    f"{spelled('grades')} maps words to grades, but with {spelled('labels')} real the"
                    " first number of a line is a label; leave out one of the two"
                )

    @property
    def absent_value(self) -> float:
        """The value of a feature that a line omits."""
        return 0.0 if self.absent == "zero" else float("nan")

    @property
    def highest_grade(self) -> int:
        """Highest grade allowed."""
        return MAX_GRADE if self.max_grade is None else self.max_grade

    @property
    def words(self) -> Words:
        """Pairs of a word and the grade that it stands for."""
        return _ordered(self.grades)


@options
class IngestOptions:
    """How to build a dataset.

    ``read`` says what the input means.  Without ``split``, ``split_time`` and ``folds`` the splits are the files, as
    given. ``buckets`` is a constant of the dataset: the order of its rows depends on it.
    """

    format: Format = option(
        default="auto",
        help="Format of the files. auto: by suffix.",
        choices=get_args(Format),
        panel=_MEANING,
    )
    read: ReadOptions = group(default_factory=ReadOptions)
    split: Mapping[str, float] | None = option(
        default=None,
        help="Assign queries to splits by hash: train=0.8,valid=0.1,test=0.1.",
        read=_shares,
        repeat=True,
        panel=_SPLITS,
    )
    split_time: Mapping[str, str] | None = option(
        default=None,
        help="Split queries by their latest time: valid=2026-01-01,test=2026-02-01. Earlier queries go to train.",
        read=_split_times,
        repeat=True,
        convert=_times,
        panel=_SPLITS,
    )
    folds: int | None = option(
        default=None,
        help="Split the queries by hash into this many folds, 3 or more, for cross-validation.",
        panel=_SPLITS,
    )
    fold: int | None = option(
        default=None,
        help="Fold to build, 1 to --folds. Each part is the valid split of one fold, and the test split of another.",
        panel=_SPLITS,
    )
    split_prefix: str = option(
        default="",
        help="Keep queries in one split whose ids agree up to the last of this character, such as / in QID/SESSION.",
        metavar="CHAR",
        convert=_one_character,
        panel=_SPLITS,
    )
    aggregate: Aggregate | None = option(
        default=None,
        help="How to combine several judgments of one document. Default: keep all rows; in --qrels, differing "
        "judgments are an error.",
        choices=AGGREGATES,
        panel=_GRADES,
    )
    max_rejects: int = option(
        default=0,
        help="Maximum number of malformed rows, judgments and pairs to quarantine. One more is an error.",
        least=0,
        panel=_LIMITS,
    )
    buckets: int = option(default=32, help="Number of shards of the dataset.", least=1, most=MAX_BUCKETS, panel=_LIMITS)
    memory: int = option(
        default="2GB",
        help=MEMORY,
        size=True,
        least=MIN_MEMORY,
        panel=_LIMITS,
    )
    threads: int = option(
        default=0, help="Maximum number of threads; fewer if memory is short. 0: all cores.", least=0, panel=_LIMITS
    )
    block_size: int = option(
        default="16MiB",
        help="Size of the blocks of text that each thread parses.",
        size=True,
        least=1,
        most=1 << 30,
        panel=_LIMITS,
    )
    cluster: str | None = option_like(ClusterOptions, "cluster", default=None, panel=_LIMITS)
    overwrite: bool = option(default=False, help="Overwrite an existing dataset.")

    def check_together(self) -> None:
        """Raise InputError if values do not go together."""
        if self.split_time is not None and self.read.time_column is None:
            raise InputError(f"{spelled('split_time')} needs a column of times; name it with {spelled('time_column')}")
        if self.split_prefix or any(each is not None for each in (self.split, self.split_time, self.folds, self.fold)):
            _ = self.rule  # raises if they are invalid

    @property
    def rule(self) -> QuerySplits | None:
        """The rule that assigns queries to splits; None: the files."""
        from rankmill.pipeline.group.query_splits import rule_of

        return rule_of(self.split, self.split_time, self.folds, self.fold, self.split_prefix)

    @property
    def allowed_threads(self) -> int:
        """The maximum number of threads."""
        return self.threads or available_cores()


@options
class QueryOptions:
    """Memory and threads of an SQL query."""

    memory: int = option(default="1GB", help=MEMORY, size=True, least=MIN_MEMORY)
    threads: int = option(default=0, help="Number of threads; 0: one per core, at most 4.", least=0)


@options
class SynthParameters:
    """Parameters of generated judgments; the defaults give a small data set.

    Queries have 1 to 2 * ``documents_per_query`` documents.  ``noise`` is the standard deviation of the noise of
    grades; that of the hidden relevance is 0.7.
    """

    queries: int = option(default=1000, help="Number of queries.", least=1, most=1 << 40)
    documents_per_query: int = option(
        default=40,
        help="Mean number of documents per query.",
        flags=("--docs-per-query",),
        least=1,
        most=1_000_000,
    )
    features: int = option(
        default=50,
        help="Number of features; the first 10 carry the signal.",
        least=N_SIGNAL,
        most=100_000,
    )
    seed: int = option(default=1, help="Seed of the generated judgments.", least=0, most=MAX_SEED)
    noise: float = option(default=0.6, help="Amount of random noise in the grades; 0: none.", least=0, most=1000)
    categorical: tuple[int, ...] = option(
        default=(),
        help="Numbers of categories of further features, which are text: 10,100,10000; only in Parquet.",
        metavar="N,..",
        read=_numbers,
        repeat=True,
        convert=_checked_categories,
    )


@options
class BinOptions:
    """Number of bins per feature, and memory."""

    max_bin: int = option(
        default=MAX_BIN, help="Maximum number of bins per feature, 15 to 255.", least=MIN_MAX_BIN, most=MAX_BIN
    )
    max_bin_of: Mapping[str, int] = option(
        default_factory=dict,
        help="Another maximum, 2 to 255, for some features: brand=50,price=63; repeat for more.",
        metavar="NAME=N,..",
        read=_bins_of,
        repeat=True,
        convert=_checked_bins,
    )
    memory: int = option(default="2GB", help=MEMORY, size=True, least=MIN_MEMORY)
    cluster: str | None = option_like(ClusterOptions, "cluster", default=None)
