"""What a person gets wrong, through the command line: one line that says where and what, the code, nothing
half-written."""

import json
import shutil
from pathlib import Path

import pytest

from rankmill.cli import execute
from tests.refusals import unnamed
from tests.written import files_in

GOOD = "".join(
    f"{(q + d) % 3} qid:{q} 1:{(q * d) % 5} 2:0.{d} 3:{d} #docid = d{d}\n" for q in range(1, 41) for d in range(9)
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("good.txt").write_text(GOOD)
        for command in (
            ["data", "ingest", "good.txt", "-o", "dataset", "--split", "train=0.8,valid=0.2"],
            ["data", "bin", "dataset"],
            ["train", "dataset", "--name", "web", "--n-rounds", "3", "--max-leaves", "3"],
            ["models", "promote", "web@1", "--force"],
        ):
            assert execute(command) == 0
    return folder


@pytest.fixture
def place(original, tmp_path, monkeypatch):
    """A folder with judgments, a dataset, and a registered model of three features; the test is in it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuse(place, typed):
    """Run a command, see that it writes nothing, and return its one line on stderr."""

    def call(command, code=2):
        before = files_in(place)
        out, err = typed(command, code=code)
        assert out == ""
        assert files_in(place) == before
        (line,) = [line for line in err.splitlines() if line.startswith("rankmill: ")]
        return line.removeprefix("rankmill: ")

    return call


BREAKING = [
    ("2 qid:1 1:3 2:\n", "bad.txt:1:13: expected"),
    ("2 qid:1 1:3\n1 qid:1 1:x\n", "bad.txt:2:9: expected"),
    ("2 qid:1 1:3\n1 qid:1 1:3 2;7\n", "bad.txt:2:13: expected"),
    ("-1 qid:1 1:3\n", "bad.txt:1:1: expected"),
    ("1 qid:1 0:3\n", "bad.txt:1:9: expected"),
    ("", "bad.txt: "),
    ("\n# only a comment\n", "bad.txt: "),
    (b"\x89PNG\r\n\x1a\n\x00\x00", "bad.txt:1: not a text file"),
]


def test_judgments_that_break_the_format(refuse):
    """A sample of ``tests/pipeline/malformed``, through the command."""
    for content, line in BREAKING:
        Path("bad.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
        beside = "" if line == "bad.txt: " else "good.txt"  # a file without rows is skipped beside others
        message = refuse(f"data ingest {beside} bad.txt -o new", 10)
        assert message.startswith(line)
        assert "0:3" not in str(content) or "--index-base 0" in message


MISTAKES = """
data ingest gone.txt -o new | gone.txt: no such file
data ingest good.txt -o dataset | dataset: a dataset already exists
data ingest good.txt -o new --split trian=1 | unknown split 'trian'; did you mean 'train'?
data ingest good.txt -o new --memory much | --memory: expected a size such as 2GB
data bin gone | gone: no such dataset
train gone --name web | gone: no such dataset
train dataset --name web --metric ndgc@10 | unknown metric 'ndgc'; did you mean 'ndcg'?
train dataset --name web --gain expo | unknown value of --gain 'expo'; did you mean 'exp'?
train dataset --name web --objective lambdamat | unknown objective 'lambdamat'; did you mean
train dataset --name web --stop-metric mapp | unknown metric 'mapp'; did you mean 'map'?
train dataset --name web --learning-rate 2 | --learning-rate must be in (0, 1], got 2.0
train dataset --name Web! | model name 'Web!': expected
train dataset --name web --max-leaves 1 | --max-leaves must be in 2 .. 65536, got 1
data bin dataset --max-bin 300 | --max-bin must be in 15 .. 255, got 300
run gone.toml | gone.toml: no such file
models show wbe | unknown model 'wbe'; did you mean 'web'?
models list --registry gone | gone: no registry here; set its folder with --registry
models list --registry dataset --json | dataset: no registry here
models list web --registry good.txt | models list: --registry (or RANKMILL_REGISTRY): good.txt is a file
convert good.txt --from lightgbm -o new.rankmill | good.txt:1: expected a LightGBM text model
convert good.txt --from xgboost -o new.rankmill | good.txt: expected an XGBoost model
schedule gone.toml --cron '0 2 * * *' --list 2 | gone.toml: no such file
run good.txt | good.txt: is not a configuration in TOML; name one, such as rankmill.toml
models gate web --on dataset --split test | dataset: the split 'test' is empty; splits with rows: train, valid;
tune dataset -o new --vary max_leaves=1.5..3 | --vary: max_leaves: expected LOW..HIGH
models verify --registry gone | gone: no registry here; set its folder with --registry
models promote web@9 | web has no version 9; there is version 1
rerank gone.txt --model web -o out | gone.txt: no such file
rerank good.txt --model gone.rankmill -o out | gone.rankmill:
rerank good.txt --model web -o out --memory '2 apples' | --memory: expected a size
rerank good.txt --model web -o out --absent zeros | unknown value of --absent 'zeros'
evaluate good.txt --model web --metric ndcg@x | metric 'ndcg@x': expected a whole number
evaluate good.txt --model web --nothing-relevant zer | unknown value of --nothing-relevant 'zer'; did you mean 'zero'?
evaluate gone.parquet | gone.parquet: no such file
evaluate good.txt --model web --ties docid | unknown value of --ties 'docid'; did you mean 'doc_id'?
"""


def test_names_and_values_that_are_not_there(refuse):
    for row in MISTAKES.strip().splitlines():
        command, line = row.split(" | ")
        assert refuse(command).startswith(line), command


def test_arguments_that_are_swapped_or_of_another_kind_are_named_with_the_cure(refuse, typed):
    Path("shop.xlsx").write_bytes(b"PK\x03\x04")
    Path("p.html").write_text("<html></html>")
    for command, facts in (
        ("models gate dataset --on web@1", ("dataset is a dataset", "rankmill models gate web@1 --on dataset")),
        ("evaluate dataset web@1", ("web@1: no such file", "model", "--model web@1")),
        ("models compare web@1", ("'compare'", "'rankmill compare'")),
        ("data ingest shop.xlsx -o new", ("shop.xlsx", ".xlsx", "spreadsheet", "CSV", "--format", "csv")),
        ("rerank p.html --model web@1 -o out", ("p.html", ".html", "document", "--format", "jsonl")),
    ):
        assert not unnamed(refuse(command), *facts), command
    Path("good.txt").rename("good.html")
    typed("data ingest good.html -o new --format letor")  # which rules over the suffix


def test_no_gate_is_advised_to_use_the_train_split(refuse, typed):
    typed("data ingest good.txt -o d")
    message = refuse("models gate web --on d --split test")
    assert "ingest again" in message
    assert "--split train " not in f"{message} "
    assert refuse("evaluate d --model web@1 --split test", 10).endswith("--split train")  # which works:
    typed("evaluate d --model web@1 --split train")


@pytest.mark.usefixtures("place")
def test_an_option_value_that_typer_knows_is_refused_in_its_box(typed):
    assert "letor" in typed.err("data ingest good.txt -o new --format letr", code=2)
    assert not Path("new").exists()


def test_training_without_bins_names_the_command_that_makes_them(refuse, typed):
    typed("data ingest good.txt -o new")
    assert refuse("train new --name web").endswith("run: rankmill data bin new")


def test_grades_that_teach_nothing_are_rejected(refuse, typed):
    Path("flat.txt").write_text("1 qid:1 1:0.5\n1 qid:1 1:0.7\n")
    typed("data ingest flat.txt -o flat")
    typed("data bin flat")
    assert "nothing to learn" in refuse("train flat --name web", 10)


def test_candidates_without_what_the_model_needs(refuse):
    Path("narrow.txt").write_text("0 qid:1 1:0.5\n")
    assert "--n-features" in refuse("rerank narrow.txt --model web -o out", 10)
    Path("narrow.csv").write_text("qid,doc_id,f1\n1,a,0.5\n1,b,0.25\n")
    message = refuse("rerank narrow.csv --model web -o out", 10)
    assert message.startswith("narrow.csv: no column 'f")
    assert "the columns are: f1" in message


def change_format(path):
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"format": 99}))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace_by_another(path):
    path.write_bytes(sorted(path.parent.glob(f"*{path.suffix}"))[1].read_bytes())


TRAIN = "train dataset --name new --n-rounds 2"


@pytest.mark.parametrize(
    ("damaged", "damage", "command"),
    [
        ("dataset/_bins/*/*.bins", flip_a_bit, TRAIN),
        ("dataset/_bins/*/*.bins", replace_by_another, TRAIN),
        ("dataset/_bins/*/*.bins", Path.unlink, TRAIN),
        ("dataset/_queries/*.parquet", flip_a_bit, TRAIN),
        ("dataset/features/*.parquet", flip_a_bit, "evaluate dataset --model web --split all"),
        ("dataset/_manifest.json", change_format, "data describe dataset"),
        ("dataset/features/*.parquet", cut_short, "data describe dataset"),
    ],
)
def test_a_dataset_that_is_not_what_it_was(place, refuse, damaged, damage, command):
    victim = next(iter(sorted(place.glob(damaged))))
    damage(victim)
    assert str(victim.relative_to(place)) in refuse(command, 13)


def test_a_model_that_is_not_what_it_was(refuse, typed):
    blob = Path(typed.json("models show web")["model_path"])
    Path("copy.rankmill").write_bytes(blob.read_bytes()[:-1])
    refuse("rerank good.txt --model copy.rankmill -o out", 13)
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    refuse("rerank good.txt --model web -o out", 13)
    refuse("models promote web@1 --alias other", 13)
    typed("models verify", code=13)


def test_a_promotion_that_came_too_late_says_try_again(refuse):
    refuse("models promote web@1 --alias candidate --expect 3", 75)
