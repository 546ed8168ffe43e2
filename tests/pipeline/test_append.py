"""Adding to a dataset gives the bytes of one ingest of all files, and leaves alone what the new rows do not touch."""

import json
import pathlib
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.foundation.errors import ConflictError, DataRejected, DatasetFormatError, InputError
from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.dataset_manifest import Meaning
from rankmill.pipeline.grouping.query_splits import parse_split_time
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.ingest.append_base import OPTIONS_OF_DATASET, OPTIONS_OF_READING, Base
from rankmill.pipeline.options import IngestOptions, ReadOptions
from tests.refusals import refused


def shards_of(folder):
    parts = ("features", "_queries", "_pairs")
    manifest = json.loads((folder / "_manifest.json").read_bytes())
    pairs = (manifest.get("pairs") or {"shards": []})["shards"]
    named = {("features", s["features"]) for s in manifest["shards"]} | {
        ("_queries", s["queries"]) for s in manifest["shards"]
    }
    named |= {("_pairs", s["digest"]) for s in pairs}
    assert all(part in parts for part, _ in named)
    return {f"{part}/{name}": (folder / part / f"{name}.parquet").read_bytes() for part, name in named}


def same(one, other):
    """Both datasets have the same shards, byte for byte, and the same manifest."""
    assert json.loads((one / "_manifest.json").read_bytes()) == json.loads((other / "_manifest.json").read_bytes())
    assert (one / "_manifest.json").read_bytes() == (other / "_manifest.json").read_bytes()
    assert shards_of(one) == shards_of(other)
    for name in ("_rejects.parquet", "_pair_rejects.parquet"):
        assert (one / name).exists() == (other / name).exists()
        if (one / name).exists():
            assert pq.read_table(one / name).equals(pq.read_table(other / name))
    Dataset.open(one).verify()


def letor(path, rows):
    """Rows of (grade, query, features by number, document)."""
    lines = [
        f"{grade} qid:{query} " + " ".join(f"{k}:{v!r}" for k, v in sorted(values.items())) + (f" #docid = {doc}" if doc else "")
        for grade, query, values, doc in rows
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def judgments(n, seed, queries=30, features=3, grades=4):
    rng = random.Random(seed)
    return [
        (
            rng.randrange(grades),
            f"q{rng.randrange(queries)}",
            {k: rng.choice([0.0, 1.5, rng.random()]) for k in range(1, features + 1) if rng.random() < 0.8} or {1: 1.0},
            rng.choice(["", f"d{rng.randrange(9)}"]),
        )
        for _ in range(n)
    ]


def grown(files, out, options):
    """Ingest the first of ``files`` and append the others one by one."""
    first, *others = files
    ingest([first], out, options=options)
    for file in others:
        ingest([file], out, options=IngestOptions(append=True, max_rejects=options.max_rejects))
    return out


# ---- append = all at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        IngestOptions(buckets=5),
        IngestOptions(buckets=5, read=ReadOptions(absent="missing", index_base=0)),
        IngestOptions(buckets=1, split={"train": 0.5, "valid": 0.2, "test": 0.3}),
        IngestOptions(buckets=5, folds=4, fold=3, read=ReadOptions(max_grade=9)),
        IngestOptions(buckets=5, read=ReadOptions(n_features=6)),
        IngestOptions(buckets=5, read=ReadOptions(categorical=("2", "f3"))),
    ],
    ids=["plain", "missing", "shares", "folds", "n_features", "categories"],
)
def test_text_in_any_number_of_appends_and_any_order(tmp_path, options):
    rows = judgments(160, 1)
    files = [letor(tmp_path / f"{k}.txt", rows[k::4]) for k in range(4)]
    ingest(files, tmp_path / "all", options=options)
    for seed in range(2):
        order = random.Random(seed).sample(files, len(files))
        same(grown(order, tmp_path / f"grown-{seed}", options), tmp_path / "all")


@given(st.integers(0, 10**6), st.integers(1, 9), st.booleans())
@settings(max_examples=6, deadline=None)
def test_wider_text_is_as_if_it_had_been_there_from_the_start(tmp_path_factory, seed, buckets, missing):
    folder = tmp_path_factory.mktemp("wider")
    rng = random.Random(seed)
    read = ReadOptions(absent="missing" if missing else "zero", categorical=("1",) if buckets % 2 else ())
    options = IngestOptions(buckets=buckets, read=read)
    files = [
        letor(folder / f"{k}.txt", judgments(rng.randrange(1, 15), seed + k, queries=6, features=rng.randrange(1, 6)))
        for k in range(3)
    ]
    ingest(files, folder / "all", options=options)
    same(grown(rng.sample(files, 3), folder / "grown", options), folder / "all")


def table(path, rows):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        path.write_text(
            "\n".join([",".join(columns), *(",".join(str(row[name]) for name in columns) for row in rows)]) + "\n"
        )
    return path


def test_new_features_are_told(tmp_path):
    first, second = (letor(tmp_path / f"{k}.txt", [(1, f"q{k}", {k: 1.0}, "")]) for k in (2, 5))
    made = ingest([first], tmp_path / "out")
    assert made.to_json()["new_features"] == []
    assert " new " not in made.render()
    found = ingest([second], tmp_path / "out", options=IngestOptions(append=True))
    assert found.to_json()["new_features"] == ["f3", "f4", "f5"]
    told = found.render().splitlines()
    assert told[1].startswith("  features  5 (f1 .. f5)")
    assert told[2] == "            3 of them new (f3 .. f5): rows from before have the absent value"
    assert told[3].startswith("  grades ")
    again = letor(tmp_path / "6.txt", [(1, "q6", {4: 1.0}, "")])
    assert ingest([again], tmp_path / "out", options=IngestOptions(append=True)).to_json()["new_features"] == []


def test_json_lines_may_bring_new_features(tmp_path):
    rng = random.Random(5)
    files = []
    for k, names in enumerate((["f9", "b"], ["f10", "f9"], ["a", "b", "z"])):
        rows = [
            {
                "qid": rng.randrange(9),
                "grade": rng.randrange(3),
                **{name: rng.random() for name in names if rng.random() < 0.8},
            }
            for _ in range(30)
        ]
        files.append(tmp_path / f"{k}.jsonl")
        files[-1].write_text(
            "".join(json.dumps(row) + "\n" for row in [*rows, {"qid": 1, "grade": 0, **dict.fromkeys(names, 1)}])
        )
    options = IngestOptions(buckets=4)
    ingest(files, tmp_path / "all", options=options)
    assert Dataset.open(tmp_path / "all").feature_names == ("a", "b", "f9", "f10", "z")
    for seed in range(2):
        same(grown(random.Random(seed).sample(files, 3), tmp_path / f"grown-{seed}", options), tmp_path / "all")
    ingest([table(tmp_path / "0.csv", [{"qid": 1, "grade": 1, "b": 2}])], tmp_path / "table")
    with refused(DataRejected, "2.jsonl", "'a'", "table"):
        ingest(files[2:], tmp_path / "table", options=IngestOptions(append=True))


def full_rows(n, seed):
    rng = random.Random(seed)
    weight_of = {f"q{query}": rng.choice([0.0, 1.0, 1 / 3]) for query in range(25)}
    rows = []
    for _ in range(n):
        qid = f"q{rng.randrange(25)}"
        rows.append(
            {
                "qid": qid,
                "doc_id": rng.choice(["", f"d{rng.randrange(5)}"]),
                "grade": rng.randrange(3),
                "label": rng.choice([0.1, -2.5e-7, rng.gauss(0, 1)]),
                "event": rng.randrange(2),
                "weight": rng.choice([0.0, 1.0, rng.random()]),
                "offset": rng.choice([0.0, -3.25]),
                "query_weight": weight_of[qid],
                "seen": rng.randrange(10**9),
                "x": rng.choice([0.0, 1.0, float("nan")]),
                "y": rng.random(),
            }
        )
    return rows


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_with_every_column(tmp_path, suffix):
    rows = full_rows(200, 2)
    files = [table(tmp_path / f"{k}.{suffix}", rows[k::4]) for k in range(4)]
    times = parse_split_time("valid=800000000,test=930000000")
    options = IngestOptions(buckets=4, read=ReadOptions(time_column="seen"), split_time=times)
    ingest(files, tmp_path / "all", options=options)
    assert len(Dataset.open(tmp_path / "all").manifest.splits) == 3
    for seed in range(2):
        order = random.Random(seed).sample(files, len(files))
        same(grown(order, tmp_path / f"grown-{seed}", options), tmp_path / "all")


def test_splits_by_files(tmp_path):
    def rows(first, seed):
        return [(g, f"{first}{q}", v, d) for g, q, v, d in judgments(30, seed, queries=8)]

    files = [
        letor(tmp_path / f"{split}{k}.txt", rows(split, k)) for k in range(2) for split in ("train", "valid", "test")
    ]
    splits = {name: [file for file in files if name in file.name] for name in ("valid", "test")}
    train = [file for file in files if "train" in file.name]
    options = IngestOptions(buckets=3)
    ingest(train, tmp_path / "all", options=options, **splits)
    ingest(train[:1], tmp_path / "grown", options=options, valid=splits["valid"][:1])
    more = IngestOptions(append=True)
    ingest([], tmp_path / "grown", options=more, valid=splits["valid"][1:], test=splits["test"][:1])
    ingest([], tmp_path / "grown", options=more, test=splits["test"][1:])
    ingest(train[1:], tmp_path / "grown", options=more)
    same(tmp_path / "grown", tmp_path / "all")
    before = (tmp_path / "grown" / "_manifest.json").read_bytes()
    stray = letor(tmp_path / "stray.txt", rows("train", 9))
    with refused(DataRejected, "query", "train", "grown", "test", "stray.txt"):
        ingest([], tmp_path / "grown", options=more, test=[stray])
    assert (tmp_path / "grown" / "_manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    "labels",
    [
        ([1, 2, 0], [3, 1], [0, 2]),  # grades throughout
        ([1, 2, 0], [3, 1.5], [0, 2]),  # until the second file
        ([1.5, 2, 0], [3, 1], [0, 2]),  # never
        ([0, 0], [0], [-1]),
    ],
)
@pytest.mark.parametrize("text", [False, True])
def test_labels_that_are_grades_until_one_is_none(tmp_path, labels, text):
    files = []
    for number, found in enumerate(labels):
        rows = [{"qid": f"q{k}", "label": label, "x": k} for k, label in enumerate(found)]
        if text:
            files.append(tmp_path / f"{number}.txt")
            files[-1].write_text("".join(f"{row['label']} qid:{row['qid']} 1:{row['x']}\n" for row in rows))
        else:
            files.append(table(tmp_path / f"{number}.csv", rows))
    options = IngestOptions(buckets=2, read=ReadOptions(labels="real" if text else "grade"))
    ingest(files, tmp_path / "all", options=options)
    for seed in range(2):
        order = random.Random(seed).sample(files, len(files))
        same(grown(order, tmp_path / f"grown-{seed}", options), tmp_path / "all")


def test_rejects_are_added_to_the_list(tmp_path):
    files = []
    for k in range(3):
        file = letor(tmp_path / f"{k}.txt", judgments(20, k))
        file.write_text(file.read_text() + f"bad line {k}\n1 qid:q1 1:oops\n" * (k != 1))
        files.append(file)
    options = IngestOptions(buckets=3, max_rejects=9)
    ingest(files, tmp_path / "all", options=options)
    for order in ([2, 0, 1], [1, 2, 0]):
        out = tmp_path / "".join(map(str, order))
        same(grown([files[k] for k in order], out, options), tmp_path / "all")


# ---- pairs -----------------------------------------------------------------------------------------------------------


def ranked(n, seed):
    """A row a document, so that pairs can name it."""
    rng = random.Random(seed)
    documents = [(f"q{k % 12}", f"d{k:03}") for k in range(n)]
    rng.shuffle(documents)
    return [{"qid": qid, "doc_id": doc, "grade": rng.randrange(3), "x": rng.random()} for qid, doc in documents]


def pairs_of(rows, path, n, seed):
    rng = random.Random(seed)
    by_query = {}
    for row in rows:
        by_query.setdefault(row["qid"], []).append(row["doc_id"])
    lines = []
    for _ in range(n):
        qid = rng.choice([qid for qid, documents in by_query.items() if len(documents) > 1])
        better, worse = rng.sample(by_query[qid], 2)
        lines.append(f"{qid} {better} {worse} {rng.choice([1, 0.5])} {rng.choice([1, 0.75])}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("graded", [True, False])
def test_pairs_follow_their_documents(tmp_path, graded):
    rows = ranked(90, 3)
    if not graded:
        rows = [{name: value for name, value in row.items() if name != "grade"} for row in rows]
    parts = [rows[:40], rows[40:70], rows[70:]]
    files = [table(tmp_path / f"{k}.csv", part) for k, part in enumerate(parts)]
    first = pairs_of(parts[0], tmp_path / "first.txt", 30, 1)
    last = pairs_of(rows, tmp_path / "last.txt", 30, 2)
    options = IngestOptions(buckets=4)
    ingest(files, tmp_path / "all", pairs=[first, last], options=options)
    ingest(files[:1], tmp_path / "grown", pairs=[first], options=options)
    ingest(files[1:2], tmp_path / "grown", options=IngestOptions(append=True))
    ingest(files[2:], tmp_path / "grown", pairs=[last], options=IngestOptions(append=True))
    same(tmp_path / "grown", tmp_path / "all")


def test_a_document_of_a_pair_must_not_come_again(tmp_path):
    rows = ranked(40, 4)
    pairs = pairs_of(rows, tmp_path / "pairs.txt", 30, 1)
    ingest([table(tmp_path / "0.csv", rows)], tmp_path / "out", pairs=[pairs], options=IngestOptions(buckets=2))
    before = shards_of(tmp_path / "out")
    named = pairs.read_text().split()[2]
    again = [row for row in rows if row["doc_id"] == named]
    more = table(tmp_path / "1.csv", [row | {"x": 7} for row in again])
    with refused(DataRejected, "pair", f"'{named}'", f"'{again[0]['qid']}'"):
        ingest([more], tmp_path / "out", options=IngestOptions(append=True))
    assert shards_of(tmp_path / "out") == before


# ---- what stays ------------------------------------------------------------------------------------------------------


def state(folder):
    files = [file for part in ("features", "_queries", "_replaced") for file in (folder / part).glob("*")]
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def test_only_touched_buckets_are_written(tmp_path):
    options = IngestOptions(buckets=16)
    ingest([letor(tmp_path / "0.txt", judgments(200, 1))], tmp_path / "out", options=options)
    before, old = state(tmp_path / "out"), Dataset.open(tmp_path / "out").manifest
    new = [(1, "q3", {1: 0.25}, "new"), (0, "quite_new", {2: 1.0}, "")]
    ingest([letor(tmp_path / "1.txt", new)], tmp_path / "out", options=IngestOptions(append=True))
    after, manifest = state(tmp_path / "out"), Dataset.open(tmp_path / "out").manifest
    assert before.items() <= after.items(), "the old shards are there until the next replacement"
    changed = {s.bucket for s in manifest.shards} - {s.bucket for s in manifest.shards if s in old.shards}
    assert 1 <= len(changed) <= 2
    assert len(after) - len(before) == 2 * len(changed)
    assert (manifest.rows, manifest.queries) == (old.rows + 2, old.queries + 1)


def test_bins_are_dropped_and_made_again_as_those_of_all_files(tmp_path):
    files = [letor(tmp_path / f"{k}.txt", judgments(60, k)) for k in range(2)]
    options = IngestOptions(buckets=4)
    ingest(files, tmp_path / "all", options=options)
    ingest(files[:1], tmp_path / "grown", options=options)
    bin_dataset(Dataset.open(tmp_path / "grown"), 63)
    ingest(files[1:], tmp_path / "grown", options=IngestOptions(append=True))
    assert Dataset.open(tmp_path / "grown").manifest.bins == []
    for name in ("all", "grown"):
        bin_dataset(Dataset.open(tmp_path / name), 63)
    same(tmp_path / "grown", tmp_path / "all")


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path):
    file = letor(tmp_path / "0.txt", judgments(40, 1))
    options = IngestOptions(buckets=4, read=ReadOptions(absent="missing"), split={"train": 0.5, "test": 0.5})
    ingest([file], tmp_path / "out", options=options)
    return tmp_path / "out"


def test_the_same_file_again(dataset, tmp_path):
    before = (dataset / "_manifest.json").read_bytes()
    more = IngestOptions(append=True)
    with refused(InputError, "0.txt", "out", "twice"):
        ingest([tmp_path / "0.txt"], dataset, options=more)
    copy = tmp_path / "copy.txt"
    copy.write_bytes((tmp_path / "0.txt").read_bytes())
    with refused(InputError, "copy.txt", "out", "0.txt"):
        ingest([copy], dataset, options=more)
    found = CliRunner().invoke(app, ["ingest", str(copy), "-o", str(dataset), "--append"])
    assert isinstance(found.exception, InputError)
    assert (dataset / "_manifest.json").read_bytes() == before
    copy.write_bytes(copy.read_bytes().replace(b"1:1.5", b"1:2.5", 1))  # of the same size, but another
    ingest([copy], dataset, options=more)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (IngestOptions(append=True, buckets=8), "buckets 4"),
        (IngestOptions(append=True, split={"train": 1.0}), ("split", "another")),
        (IngestOptions(append=True, folds=3, fold=1), "folds"),
        (IngestOptions(append=True, read=ReadOptions(index_base=0)), "index_base 1"),
        (IngestOptions(append=True, read=ReadOptions(max_grade=5)), "max_grade"),
        (IngestOptions(append=True, read=ReadOptions(labels="real")), "labels grade"),
        (IngestOptions(append=True, overwrite=True), ("append", "overwrite")),
    ],
)
def test_options_that_differ_from_the_dataset(dataset, tmp_path, options, message):
    with refused(InputError, message):
        ingest([letor(tmp_path / "1.txt", judgments(5, 2))], dataset, options=options)


def test_the_command_refuses_a_default_that_differs_and_takes_what_is_the_same(dataset, tmp_path):
    command = ["ingest", str(letor(tmp_path / "1.txt", judgments(5, 2))), "-o", str(dataset), "--append"]
    for more in (["--absent", "zero"], ["--buckets", "32"]):
        found = CliRunner().invoke(app, [*command, *more])
        assert isinstance(found.exception, InputError), found.output
        assert more[0] in str(found.exception)
    same_again = ["--absent", "missing", "--buckets", "4", "--split", "train=0.5,test=0.5"]
    found = CliRunner().invoke(app, [*command, *same_again, "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["rows"] == 45


def test_files_of_another_kind(dataset, tmp_path):
    more = IngestOptions(append=True)
    with refused(InputError, "dataset", "rankmill data ingest SRC"):
        ingest([letor(tmp_path / "1.txt", judgments(5, 2))], tmp_path / "none", options=more)
    with refused(InputError, "split", "valid or test"):
        ingest([], dataset, valid=[tmp_path / "1.txt"], options=more)
    rows = ranked(10, 1)
    with refused(DataRejected, "'f1'", "out"):
        ingest([table(tmp_path / "1.csv", rows)], dataset, options=more)
    ingest([table(tmp_path / "1.csv", rows)], tmp_path / "tables")
    for changed, message in (
        ([{**row, "z": 1} for row in rows], ("column", "'z'", "tables")),
        (
            [{**row, "weight": 1} for row in rows],
            ("column", "'weight'", "tables"),
        ),
    ):
        with refused(DataRejected, message):
            ingest([table(tmp_path / "2.csv", changed)], tmp_path / "tables", options=more)
    with refused(InputError, "LETOR", "tables"):
        ingest([tmp_path / "1.txt"], tmp_path / "tables", options=more)


def test_columns_in_another_order_take_that_of_the_dataset(tmp_path):
    rows = full_rows(30, 1)
    narrow = [{name: row[name] for name in ("qid", "grade", "x", "y")} for row in rows]
    turned = [{name: row[name] for name in ("y", "grade", "x", "qid")} for row in rows]
    ingest([table(tmp_path / "b.csv", narrow[:20])], tmp_path / "out")
    ingest([table(tmp_path / "a.csv", turned[20:])], tmp_path / "out", options=IngestOptions(append=True))
    ingest([table(tmp_path / "all.csv", narrow)], tmp_path / "all")
    assert Dataset.open(tmp_path / "out").digest == Dataset.open(tmp_path / "all").digest


def test_a_damaged_shard_is_not_built_upon(dataset, tmp_path):
    for file in (dataset / "features").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with refused(DatasetFormatError, "digest"):
        ingest([letor(tmp_path / "1.txt", judgments(40, 2))], dataset, options=IngestOptions(append=True))


def test_all_that_a_dataset_was_told_is_told_again():
    """A meaning that an append does not know of would be read in another way."""
    names = {*OPTIONS_OF_READING, *OPTIONS_OF_DATASET}
    known = {"grades_from", "aggregate"} | {"no_grade" if name == "unjudged" else name for name in names}
    beside = {"buckets", "goals"}  # in the manifest itself
    assert set(Meaning.model_fields) == known - {*beside, "fold"}  # which fold it is, folds says


def test_words_for_grades_are_those_of_the_dataset(tmp_path):
    words = [{"qid": f"q{k % 5}", "grade": ["good", "bad", "-1", ""][k % 4], "x": k} for k in range(24)]
    files = [table(tmp_path / f"{k}.csv", words[k::3]) for k in range(3)]
    read = ReadOptions(grades=(("good", 2), ("bad", 0)), negative_grades="zero", unjudged="zero")
    options = IngestOptions(buckets=3, read=read)
    ingest(files, tmp_path / "all", options=options)
    same(grown(files, tmp_path / "grown", options), tmp_path / "all")
    other = IngestOptions(append=True, read=ReadOptions(grades=(("good", 3),)))
    with refused(InputError, "append", "leave grades out"):
        ingest(files[:1], tmp_path / "grown", options=other)


# ---- a run that dies -------------------------------------------------------------------------------------------------


def test_a_run_that_dies_at_any_step_leaves_the_old_dataset_or_the_new_one(tmp_path, monkeypatch):
    first, second = (letor(tmp_path / f"{k}.txt", judgments(40, k)) for k in range(2))
    options = IngestOptions(buckets=3)
    ingest([first], tmp_path / "old", options=options)
    ingest([first, second], tmp_path / "new", options=options)
    states = {(tmp_path / name / "_manifest.json").read_bytes() for name in ("old", "new")}
    replace, steps = pathlib.Path.replace, 0
    failed = []
    for last in range(1, 60):
        out = tmp_path / f"out-{last}"
        shutil.copytree(tmp_path / "old", out)
        steps = 0

        def dies(path, target, last=last):
            nonlocal steps
            steps += 1
            if steps == last:
                raise OSError(5, "the machine dies here")
            return replace(path, target)

        monkeypatch.setattr(pathlib.Path, "replace", dies)
        try:
            ingest([second], out, options=IngestOptions(append=True))
        except OSError:
            failed.append(last)
        monkeypatch.undo()
        assert (out / "_manifest.json").read_bytes() in states
        Dataset.open(out).verify()
        if last not in failed:
            break
        if (out / "_manifest.json").read_bytes() == (tmp_path / "old" / "_manifest.json").read_bytes():
            ingest([second], out, options=IngestOptions(append=True))
        same(out, tmp_path / "new")
    assert failed == list(range(1, last))
    assert last > 10


def test_a_dataset_that_is_replaced_meanwhile_is_left_alone(tmp_path, monkeypatch):
    first, second, third = (letor(tmp_path / f"{k}.txt", judgments(40, k)) for k in range(3))
    ingest([first], tmp_path / "out", options=IngestOptions(buckets=3))
    settle = Base.with_rejects

    def late(base, *lists):
        ingest([third], tmp_path / "out", options=IngestOptions(buckets=3, overwrite=True))
        return settle(base, *lists)

    monkeypatch.setattr(Base, "with_rejects", late)
    with refused(ConflictError, "replaced"):
        ingest([second], tmp_path / "out", options=IngestOptions(append=True))
    monkeypatch.undo()
    ingest([third], tmp_path / "third", options=IngestOptions(buckets=3))
    same(tmp_path / "out", tmp_path / "third")


def test_those_who_add_at_once_do_not_undo_each_other(tmp_path):
    files = [letor(tmp_path / f"{k}.txt", judgments(20, k)) for k in range(7)]
    ingest(files, tmp_path / "all", options=IngestOptions(buckets=3))
    ingest(files[:1], tmp_path / "out", options=IngestOptions(buckets=3))

    def add(file):
        while True:
            try:
                return ingest([file], tmp_path / "out", options=IngestOptions(append=True, threads=1))
            except (ConflictError, DatasetFormatError, FileNotFoundError):  # or its shards were swept meanwhile
                continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, files[1:]))
    same(tmp_path / "out", tmp_path / "all")


# ---- queries by their sizes ------------------------------------------------------------------------------------------


def sized(path, sizes, seed):
    rng = random.Random(seed)
    path.write_text("".join(f"{rng.randrange(3)} 1:{rng.random()!r} 2:{rng.random()!r}\n" for _ in range(sum(sizes))))
    path.with_name(f"{path.name}.query").write_text("".join(f"{size}\n" for size in sizes))
    return path


def test_queries_that_are_called_by_their_file(tmp_path):
    files = [sized(tmp_path / f"{name}.txt", [3, 1, 4, 2], name) for name in "abc"]
    options = IngestOptions(buckets=4)
    ingest(files, tmp_path / "all", options=options)
    same(grown(files[::-1], tmp_path / "grown", options), tmp_path / "all")
    (tmp_path / "more").mkdir()
    with refused(InputError, "more/a.txt", "a.txt:1"):
        ingest([sized(tmp_path / "more" / "a.txt", [2], 9)], tmp_path / "grown", options=IngestOptions(append=True))


def test_the_report_is_about_what_was_read(tmp_path):
    files = [letor(tmp_path / f"{k}.txt", judgments(30 + k, k)) for k in range(2)]
    ingest(files[:1], tmp_path / "out")
    report = ingest(files[1:], tmp_path / "out", options=IngestOptions(append=True))
    assert (report.added, report.to_json()["rows"], report.to_json()["added_rows"]) == (31, 61, 31)
    assert [file.name for file in report.read] == ["1.txt"]
    assert "61 documents" in report.render()
    assert "31 of them added now" in report.render()
    assert "1 file, " in report.render()
