"""From the rows of the dataset to bins beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankmill.config import PREVIOUS
from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.errors import InputError
from rankmill.pipeline.binning import bin_dataset, bin_plan
from rankmill.pipeline.dataset import Dataset
from rankmill.run.drift import drift_of
from rankmill.run.events import Artefact
from rankmill.run.names import DRIFT
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.stages.gate import split_for
from rankmill.scorer.slices import GRADE_MIX, QUERY_SIZE

if TYPE_CHECKING:
    from rankmill.run.records import Record


class Bin(Stage):
    """``WORK/dataset/_bins`` as ``[bin]`` asks for them."""

    name = "bin"

    def inputs(self) -> Inputs:
        self._check_what_follows()
        config = self.work.config.bin  # the memory says whether edges come from all rows or from a sample
        return {
            CODE: code_digest("rankmill.pipeline"),
            "dataset": self.work.dataset().digest,
            **as_options(max_bin=config.max_bin, memory=config.memory, drift=self.work.config.drift),
            **self._former(),
        }

    def _former(self) -> Inputs:
        """Return what the data are compared with, where it is always the same."""
        rules = self.work.config.drift
        if rules is None or rules.against == PREVIOUS:
            return {}
        return {"former dataset": Dataset.open(self.work.folder / rules.against).digest}

    def _check_what_follows(self) -> None:
        """Raise InputError if the gate will find no queries, or the report no column: before hours of training, not after."""
        dataset = self.work.dataset()
        if self.work.config.gate is not None:
            split_for(self.work.config.gate, dataset)
        known = {QUERY_SIZE, GRADE_MIX, "qid", "doc_id", "grade", *dataset.optional_columns, *dataset.feature_names}
        for column in self.work.config.report.by:
            if column not in known:
                raise InputError(f"[report] by: {InputError.unknown('column', column, sorted(known))}")

    def doing(self) -> str:
        config = self.work.config.bin
        return f"at most {config.max_bin} bins a feature; {bin_plan(self.work.dataset(), config.memory_bytes).render()}"

    def reads(self) -> tuple[Artefact, ...]:
        return (self.work.told_dataset(),)

    def run(self, say: Say) -> Made:
        config, dataset = self.work.config.bin, self.work.dataset()
        spec = bin_dataset(dataset, config.max_bin, config.memory_bytes)
        facts: dict[str, Any] = {"binspec": spec.digest, "max_bin": spec.max_bin, "sampled_rows": spec.sampled_rows}
        outputs = {}
        if self.work.config.drift is not None:
            found = drift_of(self.work.dataset(), self.work.config.drift, self.work.folder, self.work.path)
            say(found.line())
            if self.work.config.drift.stop:
                found.require()
            facts["drift"] = found.facts
            outputs[DRIFT] = self.work.digests.of(found.path)
        artefact = Artefact(kind="dataset", name=self.work.named(dataset.bins_folder(spec.digest)), digest=spec.digest)
        return Made(outputs=outputs, facts=facts, artefacts=(artefact,))

    def fault(self, record: Record) -> str | None:
        dataset = self.work.dataset()
        try:
            found = dataset.bin_set()
        except InputError:
            return "the bins are gone"
        folder = dataset.bins_folder(found.binspec)
        if found.binspec != record.facts["binspec"]:
            return "others have binned the dataset"
        whole = (folder / "binspec.json").is_file() and all((folder / f"{d}.parquet").is_file() for d in found.shards)
        return super().fault(record) if whole else "the bins are damaged"
