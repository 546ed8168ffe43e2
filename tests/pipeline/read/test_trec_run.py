"""A TREC run as features: its scores and ranks as written, and no grades."""

import gzip

import numpy as np
import pytest

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.trec_run import RunSource
from tests.refusals import refused

CANDIDATES = ReadOptions(grade_required=False)
TEXT = "q1 Q0 d1 1 2.5 mine\n\n q2\tQ0  d1 0 -1e-3 mine and more\r\nq1 0 d2 2 .1 #x"
ROWS = [("q1", "d1", 2.5, 1), ("q2", "d1", -1e-3, 0), ("q1", "d2", 0.1, 2)]


def read(path, block_bytes=1 << 20, quarantine=None, options=CANDIDATES):
    rows = []
    for batch in open_source(path, "auto", options, quarantine).batches(block_bytes):
        assert batch.grade is None
        rows += zip(batch.qid.to_pylist(), batch.doc_id.to_pylist(), *batch.values.T.tolist(), strict=True)
    return rows


@pytest.mark.parametrize("block_bytes", [1, 25, 1 << 20])
def test_rows_come_through_as_written(tmp_path, block_bytes):
    expected = [(qid, doc_id, float(np.float32(score)), rank) for qid, doc_id, score, rank in ROWS]
    (tmp_path / "a.run").write_text(TEXT)
    (tmp_path / "a.run.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert read(tmp_path / "a.run", block_bytes) == read(tmp_path / "a.run.gz", block_bytes) == expected
    source = open_source(tmp_path / "a.run", options=CANDIDATES)
    assert (source.columns, source.names(2), source.fields) == (("score", "rank"), ("score", "rank"), ())


@pytest.mark.parametrize(
    ("line", "message"),
    [("é Q0 d1 1 x2 mine", (":2:11", "'x2'", "score")), ("q1 Q0 d1 nan inf mine", (":2:10", "'nan'", "rank"))],
)
def test_bad_lines_are_named_and_quarantined(tmp_path, line, message):
    path = tmp_path / "a.run"
    good = "q Q0 d 1 1 t\n"
    path.write_text(f"{good}{line}\n{good}q\n")
    with refused(MalformedLine, path, message):
        read(path)
    for block_bytes in (1, 1000):
        quarantine = Quarantine(limit=2)
        assert read(path, block_bytes, quarantine) == [("q", "d", 1, 1)] * 2
        assert [(reject.line, reject.text) for reject in quarantine.rejects] == [(2, line), (4, "q")]


def test_without_judgments_a_run_cannot_be_learnt_from(tmp_path):
    path = tmp_path / "a.run"
    path.write_text(TEXT)
    with refused(DataRejected, "a.run", "grades", "qrels FILE"):
        ingest([path], tmp_path / "out")
    with refused(InputError, "time_column", "tables"):
        RunSource(path, ReadOptions(ungraded=True, time_column="when"))
    ingest([path], tmp_path / "out", options=IngestOptions(read=ReadOptions(ungraded=True)))
    assert Dataset.open(tmp_path / "out").feature_names == ("score", "rank")
