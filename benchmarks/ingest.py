"""Speed and memory of ingesting text, compared with scikit-learn's reader of the same file.

    python benchmarks/ingest.py speed [--megabytes 1000] [--repeats 3] [--threads 2]
    python benchmarks/ingest.py memory [--gigabytes 1 4 16] [--memory 1GB] [--features 136]
    python benchmarks/ingest.py memory --gigabytes 2 --features 700 --one-query 200000

Text is generated (``rankmill data synth``: decimals like MSLR's, 8.4 bytes per value).  ``speed`` alternates the whole
ingest (to the synced dataset), the parser alone on one thread, and ``sklearn.datasets.load_svmlight_file``.  Each is a
process that has read a small file before, so that libraries are loaded and kernels compiled.  The reader of
scikit-learn gets only the first tenth of the file: it is disproportionately slow on a whole gigabyte (more than nine
minutes). ``memory`` runs the command in a new process and reports its VmHWM.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import render, spread, surroundings, table
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic

_BYTES_A_VALUE = 8.4
_ROOT = Path(__file__).parents[1]


def write_text(path: Path, size: float, features: int, one_query: int = 0) -> None:
    """Write about ``size`` bytes of judgments, plus ``one_query`` documents of a single query."""
    documents = 120
    queries = max(1, round(size / (_BYTES_A_VALUE * features * documents)))
    parameters = SynthParameters(queries=queries, documents_per_query=documents, features=features)
    write_synthetic(path, parameters, overwrite=True)
    if one_query:
        more = path.with_suffix(".more.txt")
        write_synthetic(more, SynthParameters(queries=one_query // 100, features=features, seed=2))
        with more.open("rb") as lines, path.open("ab") as file:
            for number, line in enumerate(lines):
                grade, _, rest = line.split(b" ", 2)
                file.write(b"%s qid:big %s" % (grade, rest) if number < one_query else b"")
        more.unlink()


def ingest_once(text: Path, work: Path, threads: int) -> None:
    from rankmill.pipeline.ingest import ingest
    from rankmill.pipeline.options import IngestOptions

    out = work / "dataset"
    ingest([text], out, options=IngestOptions(split={"train": 0.8, "valid": 0.2}, threads=threads))
    shutil.rmtree(out)


def parse_once(text: Path, work: Path, threads: int) -> None:  # noqa: ARG001
    from rankmill.pipeline.options import ReadOptions
    from rankmill.pipeline.read.letor import LetorSource

    for _ in LetorSource(text, ReadOptions()).batches():
        pass


def sklearn_once(text: Path, work: Path, threads: int) -> None:  # noqa: ARG001
    from sklearn.datasets import load_svmlight_file

    load_svmlight_file(str(text), query_id=True)


SUBJECTS: dict[str, tuple[str, Callable[[Path, Path, int], None]]] = {
    "ingest": ("rankmill, text to published dataset", ingest_once),
    "parse": ("rankmill, parsing alone, one thread", parse_once),
    "sklearn": ("sklearn.datasets.load_svmlight_file", sklearn_once),
}


def measured(subject: str, text: Path, small: Path, threads: int) -> float:
    """Return the seconds of ``subject`` on ``text``, in its own process, which has processed ``small`` before."""
    command = [sys.executable, __file__, "once", subject, str(text), str(small), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT)
    return float(done.stdout.split()[-1])


def once(subject: str, text: Path, small: Path, threads: int) -> None:
    run = SUBJECTS[subject][1]
    with tempfile.TemporaryDirectory(dir=text.parent) as work:
        run(small, Path(work), threads)
        started = time.perf_counter()
        run(text, Path(work), threads)
        print(time.perf_counter() - started)


def speed(arguments: argparse.Namespace, work: Path) -> None:
    text, small, part = work / "judgments.txt", work / "small.txt", work / "part.txt"
    write_text(text, arguments.megabytes * 1e6, arguments.features)
    with text.open("rb") as lines, part.open("wb") as file:
        file.writelines(lines.readlines(text.stat().st_size // 10))
    write_text(small, 1e6, arguments.features)
    megabytes = text.stat().st_size / 1e6
    files = {subject: part if subject == "sklearn" else text for subject in SUBJECTS}
    seconds: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
    for _ in range(arguments.repeats):
        for subject, found in seconds.items():
            found.append(measured(subject, files[subject], small, arguments.threads))
    sizes = {subject: file.stat().st_size / 1e6 for subject, file in files.items()}
    rates = {subject: [sizes[subject] / s for s in found] for subject, found in seconds.items()}
    times = {subject: [rates[subject][i] / r for i, r in enumerate(rates["sklearn"])] for subject in SUBJECTS}
    print(render(surroundings(["pyarrow", "scikit-learn"])))
    print(f"{megabytes:,.0f} MB of text, {arguments.features} features, {arguments.threads} threads\n")
    rows = [(SUBJECTS[s][0], spread(rates[s], 0), spread(times[s], 1)) for s in SUBJECTS]
    print(table(["what", "MB of text a second", "times scikit-learn"], rows))
    print(f"\nmedian of {arguments.repeats}: {statistics.median(rates['ingest']):.0f} MB/s end to end")


def memory(arguments: argparse.Namespace, work: Path) -> None:
    rows = []
    small = work / "small.txt"
    write_text(small, 1e6, arguments.features)
    for gigabytes in [0.0, *arguments.gigabytes]:  # the first, small one compiles kernels
        text, out = work / "judgments.txt", work / "dataset"
        if gigabytes:
            write_text(text, gigabytes * 1e9, arguments.features, arguments.one_query)
        else:
            text = small
        command = [sys.executable, "-m", "rankmill", "data", "ingest", str(text), "-o", str(out), "--overwrite"]
        command += ["--split", "train=0.8,valid=0.2", "--memory", arguments.memory, "--json"]
        command += ["--threads", str(arguments.threads)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT) as process:
            assert process.stdout is not None
            report = json.loads(process.stdout.read())
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"rankmill data ingest failed with {process.returncode}")
        if gigabytes:
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            rows.append(
                (
                    f"{text.stat().st_size / 1e9:.2f}",
                    f"{report['rows']:,}",
                    f"{peak / 1e6:,.0f}",
                    f"{report['megabytes_per_second']:.0f}",
                )
            )
            print(*rows[-1], file=sys.stderr)
        shutil.rmtree(out)
    print(render(surroundings(["pyarrow"])))
    print(table(["GB of text", "documents", "peak MB (VmHWM)", "MB of text a second"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory"])
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--features", type=int, default=136)
    parser.add_argument("--one-query", type=int, default=0, help="documents of one query besides")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder for the text, on a disk with room for twice as much")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        (speed if arguments.what == "speed" else memory)(arguments, Path(work))


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
