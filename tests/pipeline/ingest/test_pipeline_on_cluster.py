"""Ingest and binning on a cluster: the same bytes and errors as in one process, for any workers, ranges, order of
completion and loss."""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import DataRejected, InputError, MalformedRow, TooManyRejects, WorkerLost
from rankmill.pipeline.bins.binning import bin_dataset, bin_plan
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group import shard_writer
from rankmill.pipeline.group.bucket import read_bucket
from rankmill.pipeline.group.spill import SpillFile, row_schema, spill_rows
from rankmill.pipeline.ingest import IngestOptions, ingest
from rankmill.pipeline.memory_plans import MemoryShare
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read import file_ranges
from rankmill.pipeline.read.batch import RowBatch
from tests.clusters import killing_in, look_often, lose_each_call_once, on, opened_by
from tests.pipeline.ingest.test_any_order import KINDS, judgments, read_as, write
from tests.refusals import refused
from tests.waiting import until
from tests.written import files_in, write_rows

RUN = "rankmill.pipeline.ingest.run_ingest"
LOSING = ["a b c", "a", "", "b", "c d", "d"]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    look_often(monkeypatch)
    monkeypatch.setattr(file_ranges, "LEAST_BYTES", 4000)
    monkeypatch.setattr("rankmill.pipeline.ingest.on_cluster.USUAL_BUCKETS", 2)


def on_a_cluster(options):
    return replace(options, cluster="local:2")


def written(kinds, folder, n=600, files=6):
    """Write rows whose queries are in several files."""
    rows = judgments(1, n)
    paths = [folder / f"{number}{kinds[number % len(kinds)]}" for number in range(files)]
    for number, path in enumerate(paths):
        write(path, rows[number::files], random.Random(number))
    return paths


@pytest.mark.parametrize("kind", ["letor", "tables of several kinds"])
def test_the_bytes_are_those_of_one_process(tmp_path, kind, monkeypatch):
    paths = written(KINDS[kind], tmp_path)
    options = IngestOptions(read=read_as(kind, 1, 3), buckets=5, split={"train": 0.7, "valid": 0.2, "test": 0.1})
    alone = ingest(paths, tmp_path / "alone", options=options)
    expected = files_in(tmp_path / "alone")
    assert {name.split("/")[0] for name in expected} >= {"features", "_queries", "_categories"}
    for seed, looks in enumerate([["a b c"], LOSING]):
        reported = {"reading": [], "writing": []}
        with on(RUN, *looks, seed=seed) as engine:
            found = ingest(
                paths,
                tmp_path / str(seed),
                options=on_a_cluster(options),
                progress=lambda stage, *at, reported=reported: reported[stage].append(at),
            )
        total = {"reading": sum(path.stat().st_size for path in paths), "writing": found.manifest.rows}
        for stage in total if kind == "letor" else ():  # parts of tables are shares of their bytes
            assert reported[stage] == sorted(reported[stage])
            assert reported[stage][-1] == (total[stage], total[stage])
        monkeypatch.setattr(shard_writer, "writing_share", lambda *_, **__: MemoryShare(2, 1))  # values do not fit
        assert files_in(tmp_path / str(seed)) == expected
        assert (found.manifest, found.read, found.columns_guessed) == (
            alone.manifest,
            alone.read,
            alone.columns_guessed,
        )
        assert len(engine.started) >= 7  # 5 ranges, 2 groups of buckets
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in paths), "alone", *"01"}


def test_row_groups_of_one_file_are_read_by_several_workers(tmp_path):
    whole, rows = tmp_path / "all.parquet", judgments(2, 1000)
    rows = [{name: cell for name, cell in row.items() if name not in {"brand", "seen"}} for row in rows]
    write_rows(whole, rows)
    ingest([whole], tmp_path / "alone")
    assert len(file_ranges.ranges_of([_opened(whole)])) > 3
    with on(RUN, "a b"):
        ingest([whole], tmp_path / "out", options=on_a_cluster(IngestOptions()))
    assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")
    table = pq.read_table(whole)
    qid = table["qid"].to_pylist()
    qid[777] = None
    pq.write_table(table.set_column(0, "qid", pa.array(qid)), whole, row_group_size=50)
    with on(RUN, "a b"), pytest.raises(MalformedRow) as found:
        ingest([whole], tmp_path / "bad", options=on_a_cluster(IngestOptions()))
    assert found.value.line == 778


def _opened(path):
    from rankmill.pipeline.read.open_source import open_source

    return open_source(path)


def test_dictionaries_in_one_file_are_categories_in_all(tmp_path, monkeypatch):
    brands = ["acme", "été", "17", "no"]
    rng = random.Random(1)
    for number in range(4):
        names = [rng.choice(brands) for _ in range(300)]
        brand = pa.array(names).dictionary_encode() if number == 1 else pa.array(names)
        columns = {
            "qid": [f"q{rng.randrange(40)}" for _ in names],
            "grade": [1] * 300,
            "brand": brand,
            "x": [0.5] * 300,
        }
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=70)
    paths = sorted(tmp_path.glob("*.parquet"))
    ingest(paths, tmp_path / "alone")
    monkeypatch.setattr(file_ranges, "LEAST_BYTES", 500)
    with on(RUN, "a b"):
        report = ingest(paths, tmp_path / "out", options=on_a_cluster(IngestOptions()))
    assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")
    assert report.vocabulary.number("brand") == 4


@pytest.mark.parametrize("aggregate", [None, "mean"])
def test_judgments_and_pairs_in_files_of_their_own(tmp_path, aggregate):
    rng = random.Random(1)
    documents = [(f"q{k % 40}", f"d{k}") for k in range(600)]
    for number in range(3):
        lines = [f"{q},{d},{rng.random()}" for q, d in documents[number::3]]
        (tmp_path / f"rows-{number}.csv").write_text("qid,doc_id,x\n" + "\n".join(lines) + "\n")
    judged = rng.sample(documents, 400)
    lines = [f"{q} 0 {d} {rng.randrange(4)}" for q, d in judged]
    lines += ["gone 0 d1 2"] + ([f"{q} 0 {d} 1" for q, d in judged[:50]] if aggregate else [])
    (tmp_path / "qrels.txt").write_text("\n".join(lines) + "\n")
    pairs = [
        f"{q}\t{d}\td{int(d[1:]) + 40}" for q, d in judged if int(d[1:]) < 560 and (q, f"d{int(d[1:]) + 40}") in judged
    ]
    (tmp_path / "pairs.tsv").write_text("qid\tbetter\tworse\n" + "\n".join(pairs) + "\n")
    rows = sorted(tmp_path.glob("rows-*"))
    options = IngestOptions(buckets=4, aggregate=aggregate)
    more = {"qrels": [tmp_path / "qrels.txt"], "pairs": [tmp_path / "pairs.tsv"]}
    alone = ingest(rows, tmp_path / "alone", options=options, **more)
    assert alone.manifest.judgments.without_row == 1
    assert alone.manifest.pairs.pairs
    assert alone.manifest.unjudged
    for seed, looks in enumerate([["a b"], LOSING]):
        with on(RUN, *looks, seed=seed):
            ingest(rows, tmp_path / str(seed), options=on_a_cluster(options), **more)
        assert files_in(tmp_path / str(seed)) == files_in(tmp_path / "alone")


def test_rows_of_a_document_are_merged_and_labels_become_grades(tmp_path):
    rng = random.Random(1)
    for number in range(3):
        lines = [f"q{rng.randrange(30)},d{rng.randrange(9)},{rng.randrange(3)},1" for _ in range(300)]
        (tmp_path / f"{number}.csv").write_text("qid,doc_id,grade,x\n" + "\n".join(lines) + "\n")
        labels = [line.replace("q", "p") for line in lines]
        (tmp_path / f"labels-{number}.csv").write_text("qid,doc_id,label,x\n" + "\n".join(labels) + "\n")
    for name, options in (("?.csv", IngestOptions(aggregate="mean")), ("labels-?.csv", IngestOptions())):
        paths = sorted(tmp_path.glob(name))
        ingest(paths, tmp_path / "alone", options=replace(options, overwrite=True))
        with on(RUN, "a b"):
            ingest(paths, tmp_path / "out", options=on_a_cluster(replace(options, overwrite=True)))
        assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")
    (tmp_path / "labels-2.csv").write_text("qid,doc_id,label,x\nz,z,0.5,1\n")
    ingest(paths, tmp_path / "alone", options=IngestOptions(overwrite=True, read=ReadOptions(ungraded=True)))


@pytest.mark.parametrize("limit", [0, 3, 8])
def test_malformed_rows_and_errors_are_those_of_one_process(tmp_path, limit):
    rng = random.Random(5)
    for name, bad in (("a", (3, 40, 41)), ("b", ()), ("c", (1, 2, 70, 99, 100)), ("d", ())):
        lines = [f"{rng.randrange(3)} qid:{rng.randrange(9)} 1:{rng.random()} 2:1\n" for _ in range(200)]
        for line in bad:
            lines[line - 1] = f"1 qid:1 1:x{line}\n"
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    for torn in (b"", b"1 qid:1 1:\xff\n"):
        with (tmp_path / "d.txt").open("ab") as file:
            file.write(torn)
        found = []
        for name, looks in (("alone", None), ("out", ["a"]), ("again", ["a b c", "a c", "b"])):
            options = IngestOptions(max_rejects=limit, overwrite=True)
            listed = tmp_path / f"{name}.rejects.parquet"
            listed.unlink(missing_ok=True)
            try:
                if looks is None:
                    ingest(tmp_path.glob("*.txt"), tmp_path / name, options=options)
                else:
                    with on(RUN, *looks, seed=limit):
                        ingest(tmp_path.glob("*.txt"), tmp_path / name, options=on_a_cluster(options))
            except TooManyRejects as error:
                found.append((error.first, pq.read_table(listed).to_pylist()))
            except DataRejected as error:
                found.append((str(error), listed.exists()))
            else:
                found.append((files_in(tmp_path / name), listed.exists()))
        assert found[0] == found[1] == found[2]


def test_what_only_the_whole_input_shows_is_checked(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("")
    with on(RUN, "a b"), refused(DataRejected, "no rows"):
        ingest(tmp_path.glob("*.txt"), tmp_path / "out", options=on_a_cluster(IngestOptions()))
    (tmp_path / "a.txt").write_text("1 qid:1 1:2\n" * 600)
    (tmp_path / "b.txt").write_text("1 qid:1 3:2\n" * 600)
    splits = {"valid": [tmp_path / "b.txt"]}
    with on(RUN, "a b"), refused(DataRejected, "a.txt", "b.txt", "1"):
        ingest([tmp_path / "a.txt"], tmp_path / "out", options=on_a_cluster(IngestOptions()), **splits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_an_ingest_that_lost_all_workers_leaves_nothing(tmp_path):
    paths = written([".txt"], tmp_path)
    with on(RUN, "a b", "a b", "a b", ""), pytest.raises(WorkerLost, match=r"run the same command again$"):
        ingest(paths, tmp_path / "out", options=on_a_cluster(IngestOptions()))
    assert sorted(tmp_path.iterdir()) == paths


def test_work_that_was_done_and_lost_is_done_again(tmp_path):
    paths = written([".parquet"], tmp_path)
    options = IngestOptions(buckets=5, read=read_as(".parquet", 1))
    ingest(paths, tmp_path / "alone", options=options)
    with on(RUN, "a b") as engine:
        lost = lose_each_call_once(engine)
        ingest(paths, tmp_path / "out", options=on_a_cluster(options))
    assert len(lost) * 2 == len(engine.started)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")


def test_a_file_that_is_another_one_there_is_refused(tmp_path, monkeypatch):
    paths = written([".txt"], tmp_path)
    original = file_ranges.ranges_of

    def larger(sources):
        return [replace(each, sizes=tuple(size + 1 for size in each.sizes)) for each in original(sources)]

    monkeypatch.setattr("rankmill.pipeline.ingest.on_cluster.ranges_of", larger)
    with on(RUN, "a"), refused(InputError, "0.txt", "another file"):
        ingest(paths, tmp_path / "out", options=on_a_cluster(IngestOptions()))


def test_a_spill_file_that_was_cut_short_is_refused(tmp_path):
    file = SpillFile(tmp_path / "a", 2, row_schema())
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    spill_rows(file, RowBatch(qid=pa.array([f"q{k}" for k in range(20)]), doc_id=None, grade=None, values=values), 0)
    parts = file.finish()
    assert sum(len(read_bucket(parts, bucket, 2, 0.0)) for bucket in range(2)) == 20
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(OSError, match="cut short"):
        [read_bucket(parts, bucket, 2, 0.0) for bucket in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", ["read_range", "write_buckets"])
def test_the_work_of_a_killed_process_is_done_again(tmp_path, dask, killed_at):
    paths = written([".parquet", ".csv"], tmp_path)
    options = IngestOptions(buckets=7, read=read_as("tables", 1))
    ingest(paths, tmp_path / "alone", options=options)
    with killing_in(killed_at, dask) as killed, opened_by(RUN, dask):
        ingest(paths, tmp_path / "out", options=on_a_cluster(options))
    assert killed
    assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")


@pytest.mark.slow
def test_a_command_that_is_terminated_leaves_nothing_behind(tmp_path):
    paths = []
    for number in range(8):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text("".join(f"1 qid:{number}-{row // 9} 1:{row} 2:0.5 3:7\n" for row in range(60_000)))
    command = [sys.executable, "-m", "rankmill", "data", "ingest", *map(str, paths), "-o", str(tmp_path / "out")]
    with subprocess.Popen([*command, "--cluster", "local:2"], stderr=subprocess.DEVNULL) as process:
        until(lambda: list(tmp_path.glob(".out.*.staging/read")), process)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        process.terminate()
        assert process.wait(60) == 143
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    ingest(paths[:1], tmp_path / "out")  # removes the folder of a command that was ended before it had tidied up
    assert sorted(tmp_path.iterdir()) == [*paths, tmp_path / "out"]


@pytest.mark.slow
def test_the_command_writes_the_same(tmp_path, capfd):
    paths = [os.path.relpath(path) for path in written([".txt"], tmp_path)]
    usual = ["data", "ingest", *paths, "--buckets", "5", "-o"]
    assert execute([*usual, str(tmp_path / "alone")]) == 0
    assert execute([*usual, str(tmp_path / "both"), "--cluster", "local:2"]) == 0
    assert files_in(tmp_path / "both") == files_in(tmp_path / "alone")
    capfd.readouterr()
    bad = tmp_path / "zbad.txt"
    bad.write_text((tmp_path / "0.txt").read_text() + "1,2\n")
    assert execute([*usual, str(tmp_path / "t"), str(bad)]) == 10
    alone = capfd.readouterr().err.splitlines()[-1]
    assert execute([*usual, str(tmp_path / "t"), str(bad), "--cluster", "local:2"]) == 10
    assert capfd.readouterr().err.splitlines()[-1] == alone


# ---- bins
# ----------------------------------------------------------------------------------------------------------------

BINNING = "rankmill.pipeline.bins.binning"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_rows(folder / "rows.parquet", judgments(1, 900))
    options = IngestOptions(
        buckets=7,
        split={"train": 0.7, "valid": 0.3},
        read=ReadOptions(categorical=("x1", "brand"), ignore=("seen",), unjudged="zero"),
    )
    ingest([folder / "rows.parquet"], folder / "dataset", options=options)
    return folder / "dataset"


def plan_of(dataset, sampled_rows, columns):
    return replace(bin_plan(dataset), sampled_rows=sampled_rows, columns=columns)


def binned(made, to, sampled_rows, columns=2, **options):
    """Return all files of a copy of the dataset once it is binned."""
    shutil.copytree(made, to)
    dataset = Dataset.open(to)
    bin_dataset(dataset, 31, plan=plan_of(dataset, sampled_rows, columns), max_bin_of={"x3": 5}, **options)
    return files_in(to)


@pytest.mark.parametrize("sampled_rows", [None, 200])
def test_bins_have_the_bytes_of_one_process(made, tmp_path, sampled_rows):
    expected = binned(made, tmp_path / "alone", sampled_rows)
    assert len([name for name in expected if name.startswith("_bins/")]) == 3  # edges, train, valid
    for seed, looks in enumerate([["a b c"], LOSING]):
        with on(BINNING, *looks, seed=seed) as engine:
            found = binned(made, tmp_path / str(seed), sampled_rows, 1 + seed, cluster="local:2")
        assert found == expected
        assert len(engine.started) >= 6


def test_a_binning_that_lost_all_workers_leaves_the_dataset_as_it_was(made, tmp_path):
    with on(BINNING, "a b", "a b", "a b", ""), pytest.raises(WorkerLost, match=r"run the same command again$"):
        binned(made, tmp_path / "out", None, cluster="local:2")
    before = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_bins_that_exist_need_no_cluster(made, tmp_path):
    shutil.copytree(made, tmp_path / "out")
    spec = bin_dataset(Dataset.open(tmp_path / "out"))
    assert bin_dataset(Dataset.open(tmp_path / "out"), cluster="tcp://127.0.0.1:1").digest == spec.digest


@pytest.mark.slow
def test_bins_by_the_command_are_the_same(made, tmp_path, capfd):
    found = []
    for name, more in (("alone", []), ("both", ["--cluster", "local:2"])):
        shutil.copytree(made, tmp_path / name)
        assert execute(["data", "bin", str(tmp_path / name), "--max-bin", "20", *more]) == 0
        found.append({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()})
        found.append(capfd.readouterr().out.replace(name, ""))
    assert found[:2] == found[2:]
