"""Files whose metadata or hashes lie: a refusal in one line, or the rows that are there; never a crash or a wrong
join."""

import random
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import DataRejected, InputError, RankmillError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.ingest import ingest, run_ingest
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.open_source import open_source
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.rerank.first_stage import FirstStage
from tests.refusals import refused

ALIKE = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")  # a known collision of FNV-1a of 64 bits
N = 200
TABLE = pa.table(
    {
        "qid": [f"q{i // 5}" for i in range(N)],
        "doc_id": [f"d{i}" for i in range(N)],
        "grade": [i % 3 for i in range(N)],
        "x": np.arange(N) * 0.5,
        "brand": pa.array([f"b{i % 7}" for i in range(N)]).dictionary_encode(),
    }
)


def ids_of(path):
    return [
        doc_id for batch in open_source(path, options=ReadOptions()).batches() for doc_id in batch.doc_id.to_pylist()
    ]


def test_mutated_metadata_of_parquet_are_refused_or_change_no_number_of_rows(tmp_path):
    rng, path = random.Random(1), tmp_path / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=50)
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    for _ in range(100):
        mutated = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            mutated[rng.randrange(len(data) - 8 - size, len(data) - 8)] = rng.randrange(256)
        path.write_bytes(mutated)
        try:
            assert len(ids_of(path)) == N
        except RankmillError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("values", [["a", "b"], [10, 20]])
def test_a_cell_that_refers_to_no_value_of_its_dictionary_is_refused(tmp_path, values):
    brand = pa.DictionaryArray.from_arrays(pa.array([0, 5], pa.int32()), pa.array(values), safe=False)
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file:
        table = pa.table({"qid": ["q", "q"], "grade": [0, 1], "brand": brand})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    with refused(DataRejected, path):
        list(open_source(path, options=ReadOptions()).batches())


def test_too_many_columns_are_refused_before_their_values_are_read(tmp_path):
    names = [f"f{k}" for k in range(70_000)]
    path = tmp_path / "a.csv"
    path.write_text(",".join(["qid", "grade", *names]) + "\n" + ",".join(["q", "1", *["x"] * len(names)]) + "\n")
    with refused(DataRejected, path, "70000", "65536"):
        open_source(path, options=ReadOptions())


def test_queries_and_documents_with_the_same_hash_are_not_merged(tmp_path):
    assert len(set(hash_ids(pa.array(ALIKE)).tolist())) == 1
    lines = [f"{q},{d},{g},{x}" for q in ALIKE for g, d in enumerate(ALIKE) for x in [len(q) + g]]
    (tmp_path / "a.csv").write_text("\n".join(["qid,doc_id,grade,x", *lines, ""]))
    (tmp_path / "a.qrels").write_text("".join(f"{q} 0 {d} {k}\n" for k, q in enumerate(ALIKE) for d in ALIKE))
    ingest([tmp_path / "a.csv"], tmp_path / "d")
    rows = Dataset.open(tmp_path / "d").rows("train", ("qid", "doc_id"))
    assert sorted(zip(rows["qid"].to_pylist(), rows["doc_id"].to_pylist(), strict=True)) == sorted(
        (q, d) for q in ALIKE for d in ALIKE
    )
    ingest([tmp_path / "a.csv"], tmp_path / "e", qrels=[tmp_path / "a.qrels"])
    rows = Dataset.open(tmp_path / "e").rows("train", ("qid", "grade"))
    assert sorted(set(zip(rows["qid"].to_pylist(), rows["grade"].to_pylist(), strict=True))) == [
        (ALIKE[0], 0),
        (ALIKE[1], 1),
    ]
    (tmp_path / "a.run").write_text(f"q Q0 {ALIKE[0]} 1 2 t\nq Q0 x 2 1 t\n")
    found = FirstStage.read([tmp_path / "a.run"], 1 << 20).numbers(pa.array(["q"] * 3), pa.array([*ALIKE, "x"]))
    assert [number < 0 for number in found.tolist()] == [False, True, False]
    (tmp_path / "b.run").write_text("".join(f"q Q0 {d} {k} 1 t\n" for k, d in enumerate(ALIKE)))
    assert len(FirstStage.read([tmp_path / "b.run"], 1 << 20)) == 2


@pytest.mark.parametrize("change", ["grow", "shrink", "replace", "same size"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, change):
    path, text = tmp_path / "a.csv", "qid,grade,x\n" + "q,1,2\nq,0,1\n" * 100
    path.write_text(text)
    require_rows = run_ingest.require_rows

    def changed(*given):  # all rows are read
        new = {
            "grow": text + "q,0,1\n",
            "shrink": text[:-6],
            "replace": "qid,grade,x\nz,1,2\n",
            "same size": text.replace("2", "3"),
        }
        if change == "replace":
            path.unlink()
        path.write_text(new[change])
        require_rows(*given)

    monkeypatch.setattr(run_ingest, "require_rows", changed)
    with refused(InputError, path, "changed while it was read"):
        ingest([path], tmp_path / "d")
    assert not (tmp_path / "d").exists()


def with_claimed_rows(path, table, claimed):
    """Write ``table`` as Parquet whose footer claims ``claimed`` rows; the row groups keep theirs."""
    pq.write_table(table, path, row_group_size=50)
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - size : -8]
    before, after = (zigzag(number) for number in (len(table), claimed))
    at = [place for place in range(size) if footer.startswith(b"\x16" + before, place)]
    for place in at:
        lying = footer[:place] + b"\x16" + after + footer[place + 1 + len(before) :]
        path.write_bytes(data[: -8 - size] + lying + struct.pack("<I", len(lying)) + b"PAR1")
        try:
            if pq.read_metadata(path).num_rows == claimed:
                return
        except (OSError, pa.ArrowException):  # another number of the footer was the same
            continue
    raise AssertionError("the number of rows was not found")


def zigzag(number):
    """Return a whole number as Thrift's compact protocol writes it."""
    left, out = 2 * number, bytearray()
    while left > 127:
        out.append(left % 128 + 128)
        left //= 128
    return bytes([*out, left])


@pytest.mark.parametrize("claimed", [0, N - 1, 10**6])
def test_a_parquet_footer_with_another_number_of_rows_than_its_row_groups_is_refused(tmp_path, claimed):
    path, good = tmp_path / "a.parquet", tmp_path / "good.parquet"
    with_claimed_rows(path, TABLE, claimed)
    pq.write_table(TABLE.slice(0, 5), good)
    for files in ([path], [good, path]):
        with refused(DataRejected, path, f"{claimed:,} rows", f"{N:,}"):
            ingest(files, tmp_path / "d")
    with refused(DataRejected, path, f"{claimed:,} rows"):
        ingest([good], tmp_path / "d", qrels=[path])
    scored = TABLE.append_column("score", TABLE["x"])
    with_claimed_rows(path, scored, claimed)
    with refused(RankmillError, path, f"{claimed:,} rows"):
        evaluate(path, metrics=["ndcg@10"])
