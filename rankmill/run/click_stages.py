"""The stages clicks and naive.

They turn the click log of ``[clicks]`` into judgments, and train the model without correction.

Both are part of a run only if the configuration has ``[clicks]``.  If the log supports no correction, one line says so,
and the labels are click-through rates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.clicks.describe_log import describe_clicks
from rankmill.clicks.models.click_model import NotIdentified
from rankmill.clicks.models.fit_log import fit_clicks
from rankmill.clicks.read_log import open_click_log
from rankmill.clicks.table_files import TableWriter, columns_of
from rankmill.clicks.write_judgments import JudgeReport, write_judgments
from rankmill.foundation.code_digest import OF_TRAINING
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import values_of
from rankmill.foundation.records import as_json, canonical_json
from rankmill.foundation.storage.publish import publish_file, write_atomically
from rankmill.foundation.storage.staging import staging_folder
from rankmill.gate.learnt_from_clicks import naive_name
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.judgments.propensities import Propensities, write_propensities
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.pipeline.read.open_source import open_source
from rankmill.run import CLICK_MODEL, CLICKS, DESCRIPTION, JUDGMENTS, NAIVE_JUDGMENTS, PEOPLE
from rankmill.run.data_stages import IngestStage, judgments_of
from rankmill.run.model_stages import TrainStage, version_fault
from rankmill.run.stage import Inputs, Made, Say, Stage, as_options
from rankmill.run.stage_facts import ClicksFacts, NaiveFacts

if TYPE_CHECKING:
    from rankmill.clicks.describe_log import ClickLogDescription
    from rankmill.clicks.options import ClickFitOptions, ClickModelName, JudgeOptions
    from rankmill.clicks.sorted_log import SortedLog
    from rankmill.config import ClicksSection
    from rankmill.run.stage import StageRecord

WITHOUT_EFFECT = {"memory"}
NOT_CORRECTED = "the log supports no correction, so that labels are click-through rates"
_ROWS_AT_ONCE = 1 << 18


class ClicksStage(Stage):
    """Writes ``WORK/clicks``: what the log supports, the click model, and judgments.

    ``[ingest]`` takes the judgments as its qrels.
    """

    name, facts, code = "clicks", ClicksFacts, ("rankmill.clicks", "rankmill.pipeline")

    @property
    def section(self) -> ClicksSection:
        """The section of the configuration; the stage is part of a run only if there is one."""
        assert self.work.config.clicks is not None  # noqa: S101
        return self.work.config.clicks

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files of the log; InputError if a pattern matches none."""
        return self.work.expand("clicks.sources", self.section.sources)

    @cached_property
    def judged(self) -> dict[str, tuple[Path, ...]]:
        """The files of rows that people judged, by split."""
        ingest = self.work.config.ingest
        return {key: self.work.expand(f"ingest.{key}", getattr(ingest, key)) for key in ("valid", "test")}

    def own_inputs(self) -> Inputs:
        section, read = self.section, self.work.config.ingest.options.read
        values = {**values_of(section.reading), **values_of(section.fit), **values_of(section.judge)}
        inputs = as_options(
            model=section.model,
            columns_of_judgments=dict(read.columns),
            **{name: value for name, value in values.items() if name not in WITHOUT_EFFECT},
        )
        inputs |= {f"log {self.work.named(path)}": self.work.digests.of(path) for path in self.files}
        for split, paths in self.judged.items():
            inputs |= {f"{split} {self.work.named(path)}": self.work.digests.of(path) for path in paths}
        return inputs

    def doing(self) -> str:
        return f"{len(self.files)} files of the click log"

    def run(self, say: Say) -> Made:
        section, out = self.section, self.work.path / CLICKS
        out.mkdir(exist_ok=True)
        people = self._people()
        theirs = None if people is None else people.column(0).unique()
        with staging_folder(out / JUDGMENTS) as staging, open_click_log(self.files, section.reading, say=say) as log:
            supported = what_the_log_supports(log, section.fit, section.model)
            say(supported.line)
            write_atomically(staging / DESCRIPTION, canonical_json(as_json(supported.description)) + b"\n")
            made = {DESCRIPTION}
            options, given = section.judge, supported.propensities
            if given is not None:
                write_propensities(staging / CLICK_MODEL, given)
                made.add(CLICK_MODEL)
                self._judge(log, staging, NAIVE_JUDGMENTS, replace(options, estimate=None), None, theirs)
                made.add(NAIVE_JUDGMENTS)
            else:
                options = replace(options, estimate=None)
            report = self._judge(log, staging, JUDGMENTS, options, given, theirs)
            made.add(JUDGMENTS)
            if people is not None:
                with TableWriter(staging / PEOPLE, people.schema) as writer:
                    writer.write(people)
                made.add(PEOPLE)
            for name in sorted(made):
                publish_file(staging / name, out / name)
        for name in {CLICK_MODEL, NAIVE_JUDGMENTS, PEOPLE} - made:
            (out / name).unlink(missing_ok=True)
        say(report.render().partition(": ")[2])
        return Made(
            facts=ClicksFacts(
                lists=report.lists,
                queries=report.queries,
                impressions=report.impressions,
                clicks=report.clicks,
                judgments=report.rows,
                estimate=report.estimate or "",
                model=None if given is None else given.model,
                why=supported.line,
                judged=tuple(split for split, paths in self.judged.items() if paths),
            ),
            files=tuple(out / name for name in sorted(made)),
        )

    def _judge(
        self,
        log: SortedLog,
        staging: Path,
        name: str,
        options: JudgeOptions,
        given: Propensities | None,
        theirs: pa.ChunkedArray[Any] | None,
    ) -> JudgeReport:
        """Write judgments in the form of qrels, without those of queries that people judged."""
        found = staging / f"all {name}"
        report = write_judgments(log, found, options, given)
        with pq.ParquetFile(found) as file:
            wanted = ["qid", "doc_id", "grade" if options.form == "grades" else "label", "weight"]
            schema = self._named(pa.schema([file.schema_arrow.field(role) for role in wanted]))
            with TableWriter(staging / name, schema) as writer:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted):
                    table = pa.Table.from_batches([batch]).select(wanted).rename_columns(schema.names)
                    writer.write(
                        table if theirs is None else table.filter(pc.invert(pc.is_in(table.column(0), theirs)))
                    )
        return report

    def _named(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with the names of columns that ``[ingest]`` expects."""
        names = self.work.config.ingest.options.read.columns
        return pa.schema([field.with_name(names.get(field.name) or field.name) for field in schema])

    def _people(self) -> pa.Table | None:
        """Return the judgments in the rows of ``[ingest] valid`` and ``test``, in the form of qrels.

        None if there are no such files.
        """
        options, graded = self.work.config.ingest.options, self.section.judge.form == "grades"
        tables = []
        quarantine = Quarantine(options.max_rejects)
        for path in (path for paths in self.judged.values() for path in paths):
            for batch in open_source(path, options.format, options.read, quarantine).batches():
                if batch.doc_id is None or batch.grade is None:
                    raise InputError(
                        f"{path}: expected a grade and a doc_id in every row, as people judge the queries of valid "
                        "and test in a run with [clicks]; add them, or leave these files out"
                    )
                known = as_array(np.flatnonzero(batch.grade != UNKNOWN_GRADE))
                grade = as_array(batch.grade).take(known)
                columns = [
                    batch.qid.take(known),
                    batch.doc_id.take(known),
                    grade if graded else grade.cast(pa.float64()),
                ]
                if not graded:
                    columns.append(grade)
                tables.append(
                    pa.Table.from_arrays(
                        [*columns, as_array(np.ones(len(known)))], schema=self._of_people(graded=graded)
                    )
                )
        return pa.concat_tables(tables) if tables else None

    def _of_people(self, *, graded: bool) -> pa.Schema:
        label = {} if graded else {"label": pa.float64()}
        names = columns_of(qid=pa.string(), doc_id=pa.string(), **label, grade=pa.int32(), weight=pa.float64())
        return self._named(names)


class Supported(NamedTuple):
    """What a log supports: examination probabilities to correct with, or none."""

    propensities: Propensities | None
    line: str
    """For people."""
    description: ClickLogDescription


def what_the_log_supports(log: SortedLog, options: ClickFitOptions, model: ClickModelName | None) -> Supported:
    """Describe the log, and fit the click model that the description recommends, or ``model``."""
    described = describe_clicks(log, options)
    chosen, why = model or described.recommended.model, described.recommended.reason
    if chosen is None:
        return Supported(None, f"{NOT_CORRECTED}: {why}", described)
    if chosen == "dctr":
        return Supported(None, 'labels are click-through rates without correction, as model = "dctr" says', described)
    try:
        found = fit_clicks(log, chosen, options).propensities
    except NotIdentified as error:
        return Supported(None, f"{NOT_CORRECTED}: {error}", described)
    by_rank = " ".join(f"{share:.2f}" for share in found.examination[:10])
    why = "as [clicks] says" if model else f"which {why}"
    return Supported(found, f"labels are corrected by {chosen}, {why}; examination by rank: {by_rank}", described)


class NaiveStage(Stage):
    """Registers ``NAME-naive``, for the gate and the report.

    It is trained on the same rows with click-through rates as labels.
    """

    name, facts, code = "naive", NaiveFacts, ("rankmill.clicks", "rankmill.pipeline", *OF_TRAINING)

    def skip_reason(self) -> str | None:
        clicks = self.work.facts.clicks
        corrected = clicks is not None and (self.work.path / CLICKS / NAIVE_JUDGMENTS).is_file()
        return None if corrected else "the labels are not corrected, so that the model is the naive one"

    def own_inputs(self) -> Inputs:
        inputs = TrainStage(self.work).own_inputs() | IngestStage(self.work).own_inputs()
        return inputs | {"naive judgments": self.work.digests.of(self.work.path / CLICKS / NAIVE_JUDGMENTS)}

    def doing(self) -> str:
        return f"{naive_name(self.work.config.train.name)}, without correction"

    def run(self, say: Say) -> Made:
        config, bins = self.work.config.train, self.work.config.bin.options
        with staging_folder(self.work.path / CLICKS / "naive") as staging:
            IngestStage(self.work).ingest_into(
                staging / "dataset", judgments_of(self.work, NAIVE_JUDGMENTS), lambda _: None
            )
            bin_dataset(Dataset.open(staging / "dataset"), bins.max_bin, bins.memory, max_bin_of=bins.max_bin_of)
            dataset = Dataset.open(staging / "dataset")
            version = TrainStage(self.work).train(dataset, naive_name(config.name), staging, say).version
        return Made(facts=NaiveFacts(model=str(version), sha256=version.sha256))

    def fault(self, record: StageRecord) -> str | None:
        return version_fault(self.work, record.facts)
