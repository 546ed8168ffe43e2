"""Two commands that make one output at the same time: one wins, or one is refused with 75; never a mixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmill.foundation.errors import ConflictError, InputError
from rankmill.pipeline import publish_dataset
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest.run_ingest import ingest
from rankmill.pipeline.options import IngestOptions


def judged(folder: Path, name: str, queries: int) -> Path:
    path = folder / f"{name}.txt"
    path.write_text("".join(f"{doc % 2} qid:{name}{query} 1:{doc}\n" for query in range(queries) for doc in range(3)))
    return path


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("when", ["while rows are read", "at the rename"])
def test_two_ingests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, overwrite: bool) -> None:
    out, mine, other = tmp_path / "out", judged(tmp_path, "a", 40), judged(tmp_path, "b", 50)
    ingest([mine], tmp_path / "alone")
    publish, others = publish_dataset.publish_folder, []

    def rename(staged: Path, to: Path) -> None:
        interfere("at the rename")
        publish(staged, to)

    def interfere(now: str) -> None:
        if now == when and not others:
            others.append(True)
            ingest([other], out)

    monkeypatch.setattr(publish_dataset, "publish_folder", rename)
    options = IngestOptions(overwrite=overwrite)

    def run() -> None:
        ingest([mine], out, options=options, progress=lambda *_: interfere("while rows are read"))

    if overwrite:
        run()
        assert Dataset.open(out).manifest.data_digest() == Dataset.open(tmp_path / "alone").manifest.data_digest()
    else:
        with pytest.raises(ConflictError):
            run()
        assert Dataset.open(out).manifest.rows == 150
        with pytest.raises(InputError):  # a dataset that was there before is a mistake of the user
            ingest([mine], out)
    assert others
    assert not list(tmp_path.glob(".*"))
