"""Commands read and write by URL what they read and write on a disk: the same bytes, and the same refusals."""

import gzip
import json
import re
import time
import uuid
from pathlib import Path
from tempfile import gettempdir

import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import rankmill
from rankmill.cli import app, execute
from rankmill.foundation.storage import bucket, fetching, local_copies
from rankmill.foundation.storage.bucket import StoreError, open_bucket
from rankmill.foundation.storage.location import ObjectUrl, location
from rankmill.registry import Registry
from tests.cloud.conftest import reach
from tests.cloud.servers import SECRET, s3_environment
from tests.cloud.test_registry_in_a_bucket import ANSWERS, answering
from tests.foundation.storage.test_local_copies import ROOT, Bucket
from tests.refusals import only_line, refused, unnamed
from tests.written import files_in

SYNTH = ["--queries", "60", "--docs-per-query", "10", "--features", "10"]


def url_of(text):
    found = location(text)
    assert isinstance(found, ObjectUrl)
    return found


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def upload(folder, url):
    for path in folder.rglob("*"):
        if path.is_file():
            open_bucket(url).put(url / path.relative_to(folder).as_posix(), path.read_bytes())


def download(url):
    client = open_bucket(url)
    return {str(each.url.relative_to(url)): client.get(each.url) for each in client.below(url)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two files of judgments as LETOR text, one of them compressed, and candidates."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "days").mkdir()
    for number in (1, 2):
        call("data", "synth", "-o", folder / "days" / f"{number}.txt", *SYNTH, "--seed", str(number))
    second = folder / "days" / "2.txt"
    (folder / "days" / "2.txt.gz").write_bytes(gzip.compress(second.read_bytes()))
    second.unlink()
    (folder / "days" / "README.md").write_text("not rows")
    (folder / "candidates").mkdir()
    call("data", "synth", "-o", folder / "candidates" / "c.parquet", *SYNTH, "--seed", "3")
    (folder / "qrels.txt").write_text("".join(f"{qid} 0 {doc} {grade}\n" for qid, doc, grade in _grades(folder)))
    return folder


def _grades(folder):
    table = pq.read_table(folder / "candidates" / "c.parquet", columns=["qid", "doc_id", "grade"]).to_pylist()
    return ((row["qid"], row["doc_id"], row["grade"]) for row in table)


@pytest.fixture(scope="module")
def model(inputs, tmp_path_factory):
    """A model of two trees."""
    table = pl.read_parquet(inputs / "candidates" / "c.parquet")
    features = [name for name in table.columns if name not in {"qid", "doc_id", "grade", "split"}]
    ranker = rankmill.Ranker(n_rounds=2).fit(table.select(features), table["grade"], qid=table["qid"])
    path = tmp_path_factory.mktemp("model") / "web.rankmill"
    ranker.save(path)
    return path


SPLIT = ["--split", "train=0.6,valid=0.2,test=0.2"]


@pytest.mark.slow
def test_everything_has_the_same_bytes_in_a_bucket(s3, inputs, tmp_path):
    """Ingest, bins, training, lists, metrics and bundles: from and to a disk, and from and to a bucket."""
    there = url_of(f"{s3.url}/{uuid.uuid4().hex}")
    upload(inputs, there / "in")
    kept = tmp_path / "cache"
    shown = {}
    places = {"disk": (inputs, tmp_path / "out"), "bucket": (there / "in", there / "out")}
    for name, (source, out) in places.items():
        cached = ["--cache", kept] if name == "bucket" else []
        registry = ["--registry", out / "registry"]
        lines = shown.setdefault(name, [])
        dataset = out / "web.dataset"

        def said(*words, lines=lines, cached=cached, out=out, source=source):
            text = call(*words, *cached)
            lines.append(text.replace(str(out), "OUT").replace(str(source), "IN"))

        said("data", "ingest", f"{source}/days/", "-o", dataset, *SPLIT, "--json")
        said("data", "bin", dataset, "--json")
        said("data", "describe", dataset, "--json")
        said("train", dataset, "--name", "web", "--n-rounds", "3", *registry, "--json")
        said("models", "export", "web@1", "-o", out / "web.tar", *registry)
        said("models", "import", out / "web.tar", "--as", "other", "--move-aliases", *registry)
        said("rerank", f"{source}/candidates/*.parquet", "-m", "web@1", "-o", out / "ranked", *registry, "--json")
        said("rerank", source / "candidates", "-m", "web@1", "-o", out / "lists.run", *registry, "--json")
        said("evaluate", out / "ranked", "--metric", "ndcg@10", "--per-query", out / "each.csv", "--json")
        said("evaluate", out / "lists.run", "--qrels", source / "qrels.txt", "--json")
        said("compare", out / "ranked", out / "lists.run", "--qrels", source / "qrels.txt", "--json")
        said("report", "web@1", "--on", dataset, "-o", out / "report", *registry)
    here, found = files_in(tmp_path / "out"), download(there / "out")
    for files in (here, found):
        for path in [path for path in files if path.startswith("registry/")]:
            del files[path]
    assert sorted(found) == sorted(here)
    assert {path for path in here if here[path] != found[path]} <= {"web.tar"}  # it has the time of registration
    for disk, bucket_ in zip(shown["disk"], shown["bucket"], strict=True):
        assert _without_clocks(disk) == _without_clocks(bucket_)
    assert not list(kept.glob("objects/*/.*"))
    assert not list(kept.glob("out/*"))


def _without_clocks(text):
    """What a command printed, without what depends on the time: of a bundle, its size and digest."""
    if not text.startswith("{"):
        return re.sub(r"[\d.,]+ (bytes|kB|MB)", "", text)
    return {name: value for name, value in json.loads(text).items() if "second" not in name}


def test_lists_have_the_same_bytes_from_and_in_a_bucket(s3, inputs, model, tmp_path, monkeypatch, capfd):
    """By the command line and from Python; the secret is written nowhere."""
    monkeypatch.setattr("rankmill.foundation.storage.fetching.PART", 1000)  # each object has several parts
    there, kept = url_of(f"{s3.url}/{uuid.uuid4().hex}"), tmp_path / "cache"
    upload(inputs, there / "in")
    rankmill.load_model(model).save(f"{there}/web.rankmill")
    assert open_bucket(there).get(there / "web.rankmill") == model.read_bytes()
    call("data", "ingest", inputs / "days", "-o", tmp_path / "d", "--qrels", inputs / "qrels.txt", "--unjudged", "zero")
    words = ["--qrels", there / "in" / "qrels.txt", "--unjudged", "zero", "--cache", kept]
    outputs = [call("data", "ingest", f"{there}/in/days/[12]*.txt*", "-o", there / "d", *words)]
    assert str(there / "d") in outputs[0]
    assert download(there / "d") == files_in(tmp_path / "d")
    call("rerank", inputs / "candidates", "-m", model, "-o", tmp_path / "r", "--top-k", "3")
    words = ["-m", there / "web.rankmill", "--top-k", "3", "--cache", kept]
    outputs.append(call("rerank", there / "in" / "candidates", *words, "-o", there / "r", "--json"))
    assert json.loads(outputs[-1])["out"] == str(there / "r")
    monkeypatch.setenv("RANKMILL_CACHE", str(kept))
    report = rankmill.rerank(f"{there}/in/candidates", f"{there}/web.rankmill", f"{there}/p", top_k=3)
    assert report.out == str(there / "p")
    assert download(there / "r") == download(there / "p") == files_in(tmp_path / "r")
    assert rankmill.evaluate(str(there / "r")).to_json() == rankmill.evaluate(tmp_path / "r").to_json()
    assert rankmill.Dataset.open(str(there / "d")).digest == rankmill.Dataset.open(tmp_path / "d").digest
    assert rankmill.load_model(str(there / "web.rankmill")).n_features_in_ == rankmill.load_model(model).n_features_in_
    everything = [
        *files_in(tmp_path).values(),
        *download(there).values(),
        *map(str.encode, (*outputs, *capfd.readouterr())),
    ]
    assert not [data for data in everything if SECRET.encode() in data]
    assert not list(kept.glob("objects/*/.*"))
    assert not list(kept.glob("out/*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ministack", "moto", "azurite"])
def test_lists_have_the_same_bytes_on_other_stores(
    name, servers, inputs, model, tmp_path,
    monkeypatch, capfd,
):  # fmt: skip
    other = reach(servers[name], monkeypatch)
    test_lists_have_the_same_bytes_from_and_in_a_bucket(other, inputs, model, tmp_path, monkeypatch, capfd)


REFUSED = {
    "no bucket": (["data", "ingest", "s3://nowhere/x.csv", "-o", "d"], {}, 74, ("s3://nowhere/x.csv", "create it")),
    "no object": (["data", "ingest", "s3://models/none.csv", "-o", "d"], {}, 2, ("s3://models/none.csv", "no such object")),
    "no match": (["data", "ingest", "s3://models/none/*.csv", "-o", "d"], {}, 2, ("s3://models/none/*.csv", "no object matches")),
    "a folder": (["evaluate", "x", "--qrels", "URL/in"], {}, 2, ("URL/in",)),
    "a bad row": (["data", "ingest", "URL/in/qrels.txt", "-o", "URL/d"], {}, 10, ("qrels.txt:1",)),
    "not local": (["train", "URL/d", "--name", "web", "--checkpoint", "URL/c"], {}, 2, ("checkpoint", "URL/c", "local path")),
    "no dataset": (["data", "bin", "URL/in/days"], {}, 2, ("URL/in/days",)),
    "there already": (["rerank", "URL/in/candidates", "-m", "MODEL", "-o", "URL/in"], {}, 2, ("URL/in", "exists already")),
    "other objects": (["rerank", "URL/in/candidates", "-m", "MODEL", "-o", "URL/in", "--overwrite"], {}, 2, ("URL/in", "other objects")),
    "no registry": (["models", "init", "--registry", "s3://nowhere/registry"], {}, 74, ("nowhere", "create it")),
    "unknown key": (["models", "init", "--registry", "URL/registry"], {"AWS_ACCESS_KEY_ID": "nobody"}, 74, ("403",)),
    "wrong secret": (["data", "ingest", "URL/in/days", "-o", "d"], {"AWS_SECRET_ACCESS_KEY": "wrong"}, 74, ("403",)),
    "no server": (["rerank", "URL/in/candidates", "-m", "MODEL", "-o", "r"], {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 74, ("reached",)),
}  # fmt: skip


def test_what_cannot_be_is_one_line_and_writes_nothing(s3, inputs, model, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(bucket, "RETRIES", 0)
    monkeypatch.setattr("rankmill.foundation.storage.fetching.PAUSES", ())
    there = url_of(f"{s3.url}/{uuid.uuid4().hex}")
    upload(inputs, there / "in")
    before = download(there)
    (tmp_path / "x").write_text("1 Q0 a 1 0.5 tag\n")
    monkeypatch.chdir(tmp_path)
    for name, (words, settings, code, facts) in REFUSED.items():
        given = [word.replace("URL", str(there)).replace("MODEL", str(model)) for word in words]
        with monkeypatch.context() as patch:
            for variable, value in settings.items():
                patch.setenv(variable, value)
            found = execute(given)
        line = only_line(capfd.readouterr().err)
        assert (found, unnamed(line, *(fact.replace("URL", str(there)) for fact in facts))) == (code, []), (name, line)
        assert SECRET not in line
        assert str(Path(gettempdir()) / "rankmill-") not in line
    assert download(there) == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("name", ANSWERS)
def test_each_answer_of_a_store_is_explained_in_one_line(name, tmp_path, monkeypatch, capfd):
    pytest.importorskip("obstore")
    answer, kind, words = ANSWERS[name]
    port, ended = answering(answer)
    try:
        for variable, value in s3_environment(port).items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(bucket, "RETRIES", 0)
        monkeypatch.setattr("rankmill.foundation.storage.fetching.PAUSES", ())
        monkeypatch.chdir(tmp_path)
        with refused(kind, "s3://b/k", *words) as raised:
            open_bucket(url_of("s3://b/k")).get(url_of("s3://b/k"))
        assert SECRET not in repr(raised.value)
        assert type(raised.value) is kind
        for given in (["evaluate", "s3://b/k.run"], ["data", "synth", "-o", "s3://b/k.txt", *SYNTH]):
            assert execute(given) == 74
            line = only_line(capfd.readouterr().err)
            assert "s3://b" in line
            assert SECRET not in line
            assert not unnamed(line, *words), line
    finally:
        ended.set()
    assert list(tmp_path.iterdir()) == []


CONFIG = """
work = "WORK"
[ingest]
sources = ["IN/days/*.parquet"]
split = {train = 0.6, valid = 0.2, test = 0.2}
[train]
name = "web"
n_rounds = 3
[gate]
margin = 0.9
[rerank]
candidates = ["IN/candidates/{date}*"]
out = "OUT"
[report]
"""


@pytest.mark.slow
def test_a_run_reads_and_writes_buckets(s3, tmp_path, capfd):
    """The work folder is local, all else in a bucket: the same bytes, and a second run has nothing to do."""
    there, source = url_of(f"{s3.url}/{uuid.uuid4().hex}"), tmp_path / "in"
    for name, seed in (("days/1", 1), ("days/2", 2), ("candidates/2026-01-02", 3)):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        call("data", "synth", "-o", source / f"{name}.parquet", *SYNTH, "--seed", str(seed))
    upload(source, there)
    for name, given, out, more in (
        ("disk", source, "ranked", ""),
        ("bucket", there, f"{there}/ranked/{{date}}", f'out = "{there}/report"\n'),
    ):
        text = CONFIG.replace("WORK", str(tmp_path / name)).replace("IN", str(given)).replace("OUT", out) + more
        (tmp_path / f"{name}.toml").write_text(text)
    words = ["--date", "2026-01-02", "--json"]
    local = json.loads(call("run", tmp_path / "disk.toml", *words, "--registry", tmp_path / "registry"))
    run = ["run", tmp_path / "bucket.toml", *words, "--registry", f"{there}/registry"]
    far = json.loads(call(*run))
    assert far["rerank"]["out"] == f"{there}/ranked/2026-01-02"
    assert (far["ingest"]["dataset"], far["model"]["sha256"]) == (local["ingest"]["dataset"], local["model"]["sha256"])
    assert download(there / "ranked" / "2026-01-02") == files_in(tmp_path / "disk" / "ranked")
    assert sorted(download(there / "report")) == ["index.html", "report.json", "report.md"]
    cached = set(files_in(tmp_path / "bucket" / "cache"))
    assert len(cached) == 3
    read = json.loads((tmp_path / "bucket" / "stages" / "ingest.json").read_text())["inputs"]
    assert f"sources {there}/days/1.parquet" in read

    def due():
        rows = json.loads(call(*run, "--plan"))["plan"]
        return {row["stage"] for row in rows if row["what"] != "skip"}

    assert due() == set()
    (tmp_path / "bucket" / "digests.json").unlink()
    assert (due(), json.loads(call(*run))["model"]) == (set(), far["model"])
    upload(tmp_path / "disk" / "dataset", there / "former")
    version = Registry(there / "registry").resolve("web@1")
    open_bucket(there).put(there / "web.rankmill", version.read())
    text = (tmp_path / "bucket.toml").read_text()
    text = text.replace("n_rounds", f'base_model = "{there}/web.rankmill"\nn_rounds')
    text = text.replace(str(tmp_path / "bucket"), str(tmp_path / "more")).replace(f'out = "{there}/report"', "")
    text = text.replace(f"{there}/ranked/{{date}}", "ranked")
    (tmp_path / "more.toml").write_text(f'{text}[drift]\nagainst = "{there}/former"\n')
    more = json.loads(call("run", tmp_path / "more.toml", *words, "--registry", tmp_path / "models"))
    assert (more["bin"]["drift"]["psi_max"], more["ingest"]["dataset"]) == (0.0, far["ingest"]["dataset"])
    assert more["model"]["sha256"] != far["model"]["sha256"]
    assert str(gettempdir() + "/rankmill-") not in json.dumps(more)
    client = open_bucket(there)
    client.delete(there / "ranked" / "2026-01-02" / "_manifest.json")
    assert due() >= {"rerank"}
    call(*run)
    assert download(there / "ranked" / "2026-01-02") == files_in(tmp_path / "disk" / "ranked")
    client.put(there / "candidates" / "2026-01-02.parquet", (source / "days" / "1.parquet").read_bytes())
    assert "rerank" in due()
    assert "ingest" not in due()
    call(*run)
    assert len(set(files_in(tmp_path / "bucket" / "cache"))) == 3  # of what is used no longer, nothing is left
    client.delete(there / "days" / "1.parquet")
    client.delete(there / "days" / "2.parquet")
    assert execute(list(map(str, run))) == 2
    assert not unnamed(capfd.readouterr().err, "ingest.sources", f"{there}/days/*.parquet", "no object matches")
    written = [*files_in(tmp_path).values(), *download(there).values()]
    assert not [data for data in written if SECRET.encode() in data]
    assert not [
        name
        for name, data in files_in(tmp_path / "bucket").items()
        if str(gettempdir() + "/rankmill-").encode() in data
    ]


# ---- files of rows from a bucket in memory, whose parts come in any order --------------------------------------------

FORMATS = {
    "parquet": lambda table, path: table.write_parquet(path, row_group_size=100),
    "csv.gz": lambda table, path: path.write_bytes(gzip.compress(table.write_csv().encode())) and None,
}


@pytest.fixture
def memory(monkeypatch):
    """Parts are small and come in any order."""
    made = Bucket()
    made.before_part = lambda number: time.sleep(number % 7 / 1000)
    monkeypatch.setattr(local_copies, "open_bucket", lambda url: made)
    monkeypatch.setattr(fetching, "PART", 700)
    monkeypatch.setattr(fetching, "PAUSES", ())
    return made


@pytest.mark.parametrize("form", ["parquet", "csv.gz"])
def test_rows_are_the_same(form, memory, inputs, model, tmp_path):
    table = pl.read_parquet(inputs / "candidates" / "c.parquet")
    (tmp_path / "in").mkdir()
    for number, rows in enumerate((table[:300], table[300:])):
        path = tmp_path / "in" / f"{number}.{form}"
        FORMATS[form](rows, path)
        memory.put(ROOT / "in" / path.name, path.read_bytes())
    for source, out in ((tmp_path / "in", "disk"), (str(ROOT / "in"), "bucket")):
        call("rerank", source, "-m", model, "-o", tmp_path / out / "lists")
        call("data", "ingest", source, "-o", tmp_path / out / "dataset", *SPLIT)
    assert files_in(tmp_path / "bucket") == files_in(tmp_path / "disk")


@pytest.mark.parametrize("form", ["parquet"])
def test_a_store_that_fails_is_no_damaged_file(form, memory, inputs, model, tmp_path, capfd):
    FORMATS[form](pl.read_parquet(inputs / "candidates" / "c.parquet"), tmp_path / f"rows.{form}")
    memory.put(ROOT / f"c.{form}", (tmp_path / f"rows.{form}").read_bytes())
    for most in (0, 3):

        def fail(number, most=most):
            if number > most:
                raise StoreError(ROOT / f"c.{form}", "a made error")

        memory.parts, memory.before_part = 0, fail
        out = str(tmp_path / f"{most}")
        for words in (["rerank", f"{ROOT}/c.{form}", "-m", str(model)], ["data", "ingest", f"{ROOT}/c.{form}"]):
            memory.parts = 0
            assert execute([*words, "-o", out]) == 74
            assert f"rankmill: {ROOT}/c.{form}: a made error\n" in capfd.readouterr().err
            assert not Path(out).exists()
