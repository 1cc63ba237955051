"""Careless mistakes of a new user: what each must be answered with.

Each entry of a table is a mistake: its name, the command, what the answer must say, and what happened to the files.
An answer names what is wrong, where it is and what to do; nothing is written, and nothing that was there is lost.
"""

import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from shlex import split

import polars as pl
import pytest

import tdcd
from support import run_command

Change = Callable[[], object]

JOB = """
name = "loans"
labels = { silo = "bank", sharing = "shared" }

[data]
source = "tables"
validation_fraction = 0

[silos.bank]
id = "who"
label = "y"

[silos.bank.clients]
north = "north.csv"
south = "south.csv"

[silos.insurer]
id = "person"

[silos.insurer.clients]
only = "all.csv"

[model]
kind = "linear"

[training]
loss = "binary-cross-entropy"
rounds = 2
rate = 0.1
"""
SWEEP = """
name = "tiny"
job = "job.toml"
iterations = 4
evaluate_every = 2
seeds = [1]

[grid]
training.local_steps = [1, 2]
"""
HUB = """
listen = "127.0.0.1:7100"
run = "hub-run"
peers = { insurer = "127.0.0.1:7101" }

[tls]
ca = "certs/bank/ca.pem"
certificate = "certs/bank/hub.pem"
key = "certs/bank/hub.key"
peers = { insurer = "certs/insurer/ca.pem" }
"""
CLIENT = """
hub = "127.0.0.1:7100"
data = "north.csv"

[tls]
ca = "certs/bank/ca.pem"
certificate = "certs/bank/client-north.pem"
key = "certs/bank/client-north.key"
"""
FILES = {"job.toml": JOB, "sweep.toml": SWEEP, "hub.toml": HUB, "client.toml": CLIENT}


def train(job: str, run: str) -> None:
    """Train without a report, which takes longer to draw than so few rounds."""
    tdcd.run_job(tdcd.load_job(job, {"training.rounds": 2, "baselines": []}), run)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what mistakes are made with: tables, a job, a sweep file, site files, certificates and two runs."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        for name, text in FILES.items():
            Path(name).write_text(text)
        for name, people in {"north": range(40), "south": range(40, 60)}.items():
            rows = (f"{n},{n % 7}.5,{'ab'[n % 2]},{int(n % 7 > 3)}" for n in people)
            Path(f"{name}.csv").write_text("\n".join(["who,x,job,y", *rows]) + "\n")
        Path("all.csv").write_text("\n".join(["person,z", *(f"{n},{n % 3}" for n in range(5, 70))]) + "\n")
        Path("empty").mkdir()
        train("job.toml", "run")
        train("digits", "digits-run")
        for silo in ("bank", "insurer"):
            assert run_command("certs", "job.toml", "--silo", silo) == 0
    return folder


@pytest.fixture
def _in_a_copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "300")


def edit(file: str, old: str, new: str) -> Change:
    def change() -> None:
        text = Path(file).read_text()
        assert old in text, f"{file} has no {old!r} to make a mistake with"
        Path(file).write_text(text.replace(old, new))

    return change


def write(file: str, content: str | bytes) -> Change:
    return lambda: Path(file).write_bytes(content.encode() if isinstance(content, str) else content)


def lines(file: str, change: Callable[[list[str]], list[str]]) -> Change:
    return lambda: Path(file).write_text("\n".join(change(Path(file).read_text().splitlines())) + "\n")


def line(file: str, number: int, text: str) -> Change:
    """Put a text in place of a line, counted from 1."""
    return lines(file, lambda every: [*every[: number - 1], text, *every[number:]])


def remove(file: str) -> Change:
    return lambda: shutil.rmtree(file) if Path(file).is_dir() else Path(file).unlink()


def encode(file: str, encoding: str, old: str = "", new: str = "") -> Change:
    return lambda: Path(file).write_bytes(Path(file).read_text().replace(old, new).encode(encoding))


def as_parquet(file: str, cast: dict[str, type[pl.DataType]]) -> Change:
    """Write a table as Parquet, and name that in the job."""

    def change() -> None:
        name = file.replace(".csv", ".parquet")
        pl.read_csv(file).with_columns(*(pl.col(c).cast(kind) for c, kind in cast.items())).write_parquet(name)
        edit("job.toml", file, name)()

    return change


def both(*changes: Change) -> Change:
    return lambda: [change() for change in changes]


def files() -> dict[str, bytes]:
    """Return all files that there are, but for locks."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.name != ".lock"}


def mistake(name: str, words: str, *says: str, after: Change | None = None) -> object:
    return pytest.param(words, says, after, id=name)


BANK = "silo 'bank', client 'north' ("
INSURER = "silo 'insurer', client 'only' ("


def silo_key(key: str) -> Change:
    """Add a line to what the job says of the bank."""
    return edit("job.toml", 'id = "who"', f'id = "who"\n{key}')


def insurer_as(text: str) -> Change:
    """Say otherwise where the insurer's rows are."""
    return edit("job.toml", '\n\n[silos.insurer.clients]\nonly = "all.csv"', f"\n{text}")


COMMANDS = [
    mistake("misspelt command", "trian job.toml", "No such command 'trian'. Did you mean 'train'?"),
    mistake("misspelt option", "train job.toml --round 3", "No such option: --round", "--rounds"),
    mistake("text for a number", "train job.toml --rounds ten", "Invalid value for '--rounds' / '-R'", "valid integer"),
    mistake("decimal comma in an option", "train job.toml --rate 0,1", "Invalid value for '--rate'", "valid number"),
    mistake("seed as text", "train job.toml --seed abc", "Invalid value for '--seed'", "valid integer"),
    mistake("no such job", "train jobs.toml", "jobs.toml: no such job file; did you mean 'job.toml'?"),
    mistake("folder of a job", "train .", ".: a directory, not a job file; did you mean 'job.toml'?"),
    mistake("misspelt embedded job", "train cifar", "cifar: no such job file; did you mean 'cifar10'?"),
    mistake("embedded job in capitals", "train CIFAR10", "CIFAR10: no such job file; did you mean 'cifar10'?"),
    mistake("job without its suffix", "check job", "job: no such job file; did you mean 'job.toml'?"),
    mistake("directory as a job", "train empty", "empty: a directory, not a job file"),
    mistake("run as a job", "train run", "run: a directory, not a job file; to go on", "tdcd train --resume run"),
    mistake("sweep as a job", "check sweep.toml", "sweep.toml: this is a sweep file", "tdcd sweep sweep.toml"),
    mistake("job as a sweep", "sweep job.toml", "job.toml: this is a job file", "tdcd train job.toml"),
    mistake("job as a run", "predict job.toml", "job.toml is a file; name the directory of a run"),
    mistake("table as a job", "train north.csv", "north.csv: not TOML", "line 1"),
    mistake("job in UTF-16", "train job.toml", "job.toml: not a text in UTF-8; save it in UTF-8",
            after=encode("job.toml", "utf-16")),
    mistake("empty job", "train job.toml", "data: Field required", "training: Field required",
            after=write("job.toml", "")),
    mistake("a key twice", "train job.toml", "job.toml: not TOML: Cannot overwrite a value (at line 30",
            after=edit("job.toml", "rate = 0.1", "rate = 0.1\nrate = 0.2")),
    mistake("decimal comma in a job", "train job.toml", "job.toml: not TOML", "at line 29",
            after=edit("job.toml", "rate = 0.1", "rate = 0,1")),
    mistake("--set without =", "train job.toml --set training.rate", "--set training.rate: write it as KEY=VALUE"),
    mistake("--set without a key", "train job.toml --set =3", "--set =3: write it as KEY=VALUE"),
    mistake("alignment without tables", "align digits", 'data.source is "digits", not "tables"', "need no alignment"),
    mistake("alignment over a table", "align job.toml -o all.csv", "all.csv exists already, and is no alignment",
            "--out"),
    mistake("alignment to nowhere", "align job.toml -o no/a.parquet", "no/a.parquet: cannot be written"),
    mistake("job over a file", "init digits -o job.toml", "job.toml exists already and is left as it is", "--out"),
]  # fmt: skip

SETTINGS = [
    mistake("misspelt key", "train job.toml", "job.toml: training: unknown key 'runds'; did you mean 'rounds'?",
            after=edit("job.toml", "rounds", "runds")),
    mistake("misspelt table", "train job.toml", "unknown key 'trainning'; did you mean 'training'?",
            after=edit("job.toml", "[training]", "[trainning]")),
    mistake("misspelt key of a silo", "train job.toml", "silos.bank: unknown key 'lable'; did you mean 'label'?",
            after=edit("job.toml", "label =", "lable =")),
    mistake("key without its table", "train job.toml --set rate=0.1", "unknown key 'rate'; did you mean "
            "'training.rate'?"),
    mistake("key in another table", "train job.toml", "model: unknown key 'rounds'; did you mean 'training.rounds'?",
            after=edit("job.toml", 'kind = "linear"', 'kind = "linear"\nrounds = 5')),
    mistake("key of a silo", "train job.toml", "data: unknown key 'label'; did you mean 'silos.NAME.label'?",
            after=edit("job.toml", 'source = "tables"', 'source = "tables"\nlabel = "y"')),
    mistake("key below a table", "train job.toml", "data: unknown key 'device'; did you mean 'device', at the top of "
            "the file?", after=edit("job.toml", 'source = "tables"', 'source = "tables"\ndevice = "cpu"')),
    mistake("misspelt silo", "train job.toml", "labels.silo: 'bnak' is no silo; did you mean 'bank'?",
            after=edit("job.toml", 'silo = "bank"', 'silo = "bnak"')),
    mistake("misspelt model", "train job.toml --set model.kind=linaer", "unknown kind of model 'linaer'",
            "did you mean 'linear'?"),
    mistake("unknown model", "train job.toml --set model.kind=gpt", "unknown kind of model 'gpt'", "resnet18",
            "'package.module:factory'"),
    mistake("file for a module", "train job.toml --set model.kind=nets/own.py:net", "model.kind: is written as "
            "'package.module:factory' (is 'nets/own.py:net')"),
    mistake("model without a kind", "train job.toml", "job.toml: model: a model needs a kind: linear, mlp",
            after=edit("job.toml", 'kind = "linear"', "")),
    mistake("width 0", """train job.toml --set 'model={kind="mlp",hidden=[0]}'""",
            "model.hidden.0: should be greater than 0 (is 0)"),
    mistake("width of a linear model", "train job.toml --set model.hidden=[64]", "model: unknown key 'hidden'"),
    mistake("images wanted", "train job.toml --set model.kind=cnn", "silo 'bank': a CNN takes images", "shape (3,)"),
    mistake("misspelt data set", "train job.toml --set data.source=table", "data.source: 'table' is not known",
            "did you mean 'tables'?"),
    mistake("0 rounds", "train job.toml -R 0", "training.rounds: should be greater than 0 (is 0)"),
    mistake("negative rounds", "train job.toml -R -3", "training.rounds: should be greater than 0 (is -3)"),
    mistake("half a round", "train job.toml --set training.rounds=2.5", "training.rounds", "valid integer (is 2.5)"),
    mistake("number in quotes", "train job.toml", "training.rounds", "(is '2', a text; write it without quotes)",
            after=edit("job.toml", "rounds = 2", 'rounds = "2"')),
    mistake("text without quotes", "train job.toml --set labels.classes=[0,1]", "labels.classes.0",
            "(is 0, a number; write it in quotes)"),
    mistake("text for a table", "train job.toml --set training.schedule=cosine", "training.schedule: should be a table "
            "(is 'cosine')"),
    mistake("rate 0", "train job.toml --rate 0", "training.rate: should be greater than 0"),
    mistake("rate nan", "train job.toml --rate nan", "training.rate: should be a finite number (is nan)"),
    mistake("rate 1e400", "train job.toml --rate 1e400", "training.rate: should be a finite number (is inf)"),
    mistake("batch of 0", "train job.toml -B 0", 'training.batch_size: should be a whole number above 0 or "full"'),
    mistake("batch beyond the rows", "train job.toml -B 500", "training.batch_size: 500 is more than the 47 training",
            "set it to 47 or fewer"),
    mistake("0 clients", "train digits -K 0", "data.clients: should be greater than 0 (is 0)"),
    mistake("clients of files", "train job.toml -K 3", "number of clients cannot be set", "silo 'bank' have files"),
    mistake("more clients than rows", "train job.toml", "silo 'insurer': 300 clients for 47 rows", "47 or fewer",
            after=insurer_as('file = "all.csv"\nclients = 300')),
    mistake("negative seed", "train job.toml --seed -1", "training.seed: should be greater than or equal to 0"),
    mistake("unknown precision", "train job.toml --set training.precision=float16",
            "training.precision: should be 'float32' or 'float64' (is 'float16')"),
    mistake("unknown device", "train job.toml --device gpu", "device: 'gpu' is not known", '"cuda:1"'),
    mistake("unknown engine", "train job.toml --engine fast",
            "engine: should be 'local', 'oracle' or 'ray' (is 'fast')"),
    mistake("all held out", "train job.toml --set data.test_fraction=1", "data.test_fraction: should be less than 1"),
    mistake("percent for a fraction", "train job.toml --set data.test_fraction=20", "data.test_fraction", "(is 20)"),
    mistake("negative deadline in a job", "check job.toml", "deployment.client_deadline: should be greater than 0",
            after=write("job.toml", JOB + "[deployment]\nclient_deadline = -5\n")),
    mistake("deadline that never comes", "check job.toml", "deployment.hub_deadline: should be less than or equal to "
            "31536000 (is inf)", after=write("job.toml", JOB + "[deployment]\nhub_deadline = inf\n")),
    mistake("momentum that does nothing", """train job.toml --set 'training.optimizer={kind="sgd", momentum=0.9}'""",
            "with local_steps = 1 it does nothing", "let the hub carry it: aggregator = { kind = \"momentum\""),
    mistake("momentum in a wrong table", "train job.toml --set training.momentum=0.9",
            "unknown key 'momentum'; did you mean 'training.optimizer.momentum'?"),
    mistake("aggregator nobody knows", "train job.toml --set training.aggregator=mean",
            "training.aggregator: unknown kind of aggregator 'mean'"),
    mistake("best of nothing", "train job.toml --set training.select=best", "need a validation set",
            "data.validation_fraction = 0.1"),
    mistake("step without every", """train job.toml --set 'training.schedule={kind="step"}'""",
            "training.schedule.every: Field required"),
    mistake("key that is a kind elsewhere", "train job.toml", "silos.bank.columns: should be a valid list (is 'x')",
            after=silo_key('columns = "x"')),
    mistake("key called as its kind", """train digits --set 'data.rows={kind="column"}'""",
            "data.rows.column: Field required"),
    mistake("silo called as a data set", "train job.toml", "silos.digits.label: should be a valid string (is 3",
            after=both(edit("job.toml", "bank", "digits"), edit("job.toml", 'label = "y"', "label = 3"))),
    mistake("blank in a job's name", "train job.toml", "job.toml: name: names a directory: letters, digits, dots",
            "(is 'my loans')", after=edit("job.toml", '"loans"', '"my loans"')),
    mistake("slash in a silo's name", "train job.toml", "silos: 'the/bank': a name has letters, digits",
            after=both(edit("job.toml", "silos.bank", 'silos."the/bank"'), edit("job.toml", '"bank"', '"the/bank"'))),
    mistake("no silos", "train job.toml", "silos: tables need a [silos.NAME] for every silo",
            after=write("job.toml", re.sub(r"(?s)\[silos.*(?=\[model])", "", JOB))),
    mistake("0 silos", """train digits --set 'data.features={kind="strips",silos=0}' --set silos={}""",
            "data.features.silos: should be greater than 0 (is 0)"),
    mistake("more silos than pixels", """train digits --set 'data.features={kind="strips",silos=9}' --set silos={}""",
            "8 pixels cannot be split among 9 silos; use 8 or fewer"),
    mistake("unknown feature", """train breast-cancer --set 'data.features={kind="columns",silos={a=["size"]}}'
            --set silos={}""", "data.features.silos.a: the data has no column 'size'"),
    mistake("directory of tables", "train job.toml --data empty", "data: directory (--data) goes with a data set",
            "files of tables are named in [silos.NAME]"),
    mistake("data without a source", "train job.toml", "data.source: say where the rows come from", "tdcd data list",
            after=edit("job.toml", 'source = "tables"', "")),
    mistake("files of a data set not named", "train cifar10", "cifar10: say in which directory its files are",
            "tdcd data list"),
    mistake("files of a data set not there", "train cifar10 --data empty", "data_batch_1.bin is not there",
            "it has nothing"),
    mistake("directory of a built-in data set", "train digits --data empty", "digits: it comes with tdcd and takes no "
            "directory"),
    mistake("experiment without its files", "reproduce cifar10", "--data: say where the files of CIFAR-10 are",
            "tdcd data list"),
    mistake("audit of shared labels", "audit labels job.toml", 'labels.sharing is "shared"', "nothing to infer",
            "--set labels.sharing=stale"),
    mistake("audit with bare noise", "audit labels job.toml --noise 1 --set labels.sharing=exact",
            "--noise is in units of --clip: set that, too"),
]  # fmt: skip

LABELS_YES = both(*(lines(f, lambda rows: [re.sub("0$", "no", re.sub("1$", "yes", row)) for row in rows])
                    for f in ("north.csv", "south.csv")))  # fmt: skip

TABLES = [
    mistake("no such table", "train job.toml", BANK, "north.csv): no such file", after=remove("north.csv")),
    mistake("directory as a table", "train job.toml", BANK, "cannot be read: Is a directory",
            after=both(remove("north.csv"), lambda: Path("north.csv").mkdir())),
    mistake("spreadsheet as a table", "train job.toml", BANK, "neither a .csv nor a .parquet file by its name",
            after=both(edit("job.toml", "north.csv", "north.xlsx"), write("north.xlsx", "PK"))),
    mistake("compressed table", "train job.toml", BANK, "named .csv but is no text; is it compressed",
            after=write("north.csv", b"\x1f\x8b" + bytes(range(256)))),
    mistake("empty table", "train job.toml", BANK, "the file is empty", after=write("north.csv", "")),
    mistake("table of a header", "train job.toml", INSURER, "it has a header but no rows",
            after=write("all.csv", "person,z\n")),
    mistake("no such column of IDs", "train job.toml", INSURER, "it has no column 'person' (silos.insurer.id)",
            "did you mean 'Person'?", after=line("all.csv", 1, "Person,z")),
    mistake("no such column of labels", "train job.toml", BANK, "it has no column 'y' (silos.bank.label)",
            "there is default, job, who, x", after=line("north.csv", 1, "who,x,job,default")),
    mistake("no column of labels named", "train job.toml", "labels.silo: silo 'bank' names no column of labels",
            "silos.bank.label", after=edit("job.toml", 'label = "y"', "")),
    mistake("no column of IDs named", "train job.toml", "silos.bank.id: name the column that holds the IDs",
            after=edit("job.toml", 'id = "who"', "")),
    mistake("labels that may not be shared", "train job.toml", "only silo bank has labels. If insurer may be handed",
            'labels = { silo = "bank", sharing = "shared" }',
            after=edit("job.toml", 'labels = { silo = "bank", sharing = "shared" }', "")),
    mistake("labels in two silos", "train job.toml", "silos 'bank' and 'insurer' contradict each other: the label of",
            after=both(edit("job.toml", 'id = "person"', 'id = "person"\nlabel = "z"'),
                       lines("all.csv", lambda rows: ["person,z,v", *(f"{row},{n}" for n, row in enumerate(rows[1:]))])
                       )),
    mistake("an ID twice", "train job.toml", "silo 'bank': 1 IDs stand for several rows: 2 (north, north)",
            "silos.bank.aggregate", after=lines("north.csv", lambda rows: [*rows, rows[3]])),
    mistake("an ID at two clients", "train job.toml", "silo 'bank': 1 IDs stand for several rows: 3 (north, south)",
            after=lines("south.csv", lambda rows: [*rows, "3,1.5,a,1"])),
    mistake("a table at two clients", "train job.toml", "40 IDs stand for several rows: 0 (north, south)",
            after=edit("job.toml", "south.csv", "north.csv")),
    mistake("leading zeros in one silo", "align job.toml", "IDs are of different types: silo 'bank' has whole numbers",
            "'insurer' has texts ('005' at client 'only')", "write them in the same way in all silos",
            after=lines("all.csv", lambda rows: [rows[0], *(f"00{row}" for row in rows[1:])])),
    mistake("numbers and texts as IDs", "align job.toml", "IDs are of different types", "'insurer' has texts ('C5'",
            after=lines("all.csv", lambda rows: [rows[0], *(f"C{row}" for row in rows[1:])])),
    mistake("one ID that is a text", "align job.toml", "silo 'bank' has texts ('57b' at client 'south')",
            "'insurer' has whole numbers (5, 6, 7", after=line("south.csv", 19, "57b,2.5,a,1")),
    mistake("fractions as IDs", "align job.toml", INSURER, "column 'person' holds Float64; IDs must be whole",
            after=as_parquet("all.csv", {"person": pl.Float64})),
    mistake("no ID in common", "align job.toml", "no ID is in all silos: 'bank' has 60 (0, 1, 2", "'insurer' has 65 (9",
            "Do their ID columns mean the same?",
            after=lines("all.csv", lambda rows: [rows[0], *(f"9000{row}" for row in rows[1:])])),
    mistake("two IDs in common", "train job.toml", "leave no samples to test, out of 2; choose others", "IDs that all "
            "silos have", after=lines("all.csv", lambda rows: [*rows[:3], *(f"9000{row}" for row in rows[3:])])),
    mistake("a row without an ID", "align job.toml", INSURER, "1 rows have no ID in column 'person'", "row 5",
            after=line("all.csv", 6, ",1")),
    mistake("text in row 5,000", "train job.toml", BANK, "column 'x' holds numbers and texts", "row 5000 the text 'x'",
            "silos.bank.missing",
            after=both(write("north.csv", "who,x,job,y\n" + "".join(
                f"{n + 60},{'x' if n == 4999 else n},a,{n % 2}\n" for n in range(6000))),
                write("all.csv", "person,z\n" + "".join(f"{n},{n % 3}\n" for n in range(6060))))),
    mistake("semicolons", "train job.toml", BANK, "its first line is 'who;x;job;y'", "separated by ';'",
            "Set silos.bank.separator, or separator for client 'north' alone", after=edit("north.csv", ",", ";")),
    mistake("tabs", "train job.toml", BANK, "its first line is 'who\\tx\\tjob\\ty'. Are its cells separated by '\\t'?",
            after=edit("north.csv", ",", "\t")),
    mistake("no line of names", "train job.toml", BANK, "several columns have the same name in the first line: 0",
            after=lines("north.csv", lambda rows: rows[1:])),
    mistake("separator in words", "train job.toml", "silos.bank.separator: is one sign, such as", '"\\t" for a tab',
            "(is 'tab')", after=silo_key('separator = "tab"')),
    mistake("UTF-16 without a mark", "train job.toml", BANK, 'encoding = "utf-16-le"',
            after=encode("north.csv", "utf-16-le")),
    mistake("Latin letters", "train job.toml", BANK, 'Save it in UTF-8, or name its encoding, such as "cp1252"',
            after=encode("north.csv", "latin-1", ",a,", ",é,")),
    mistake("a short row", "train job.toml", BANK, "line 7 has 3 cells, the first line 4; is it cut off",
            after=line("north.csv", 7, "5,2.5,a")),
    mistake("decimal commas", "train job.toml", "silo 'bank': column 'x' holds texts that look like numbers", "'0,5'",
            'silos.bank.decimal = ","', after=both(silo_key('separator = ";"'), *(
                both(edit(f, ",", ";"), edit(f, ".", ",")) for f in ("north.csv", "south.csv")))),
    mistake("decimal commas at one client", "train job.toml", "column 'x' holds numbers at client 'north'",
            "texts at 'south'", "decimal for client 'south' alone", after=both(
                edit("job.toml", 'south = "south.csv"', 'south = { file = "south.csv", separator = ";" }'),
                edit("south.csv", ",", ";"), edit("south.csv", ".", ","))),
    mistake("column without values", "train job.toml", "silo 'insurer': column 'z' has no value in any row",
            "silos.insurer.exclude",
            after=lines("all.csv", lambda rows: [rows[0], *(re.sub(",.*", ",", row) for row in rows[1:])])),
    mistake("infinite value", "train job.toml", INSURER, "column 'z' holds numbers and texts", "row 7 the text 'inf'",
            after=line("all.csv", 8, "11,inf")),
    mistake("a row without a label", "train job.toml", BANK, "column 'y' has no value in 1 rows", "row 6",
            "leave those rows out", after=line("north.csv", 7, "5,2.5,a,NaN")),
    mistake("a third class", "train job.toml", "silo 'bank', column 'y'", "binary-cross-entropy wants two",
            "the first '2' is in row 8", 'training.loss = "cross-entropy"', after=line("north.csv", 9, "7,2.5,a,2")),
    mistake("only one class", "train job.toml", "silo 'bank', column 'y': labels: all 55 are '1'", "two classes",
            "Is it the right column?", after=both(*(lines(f, lambda rows: [re.sub("0$", "1", row) for row in rows])
                                                    for f in ("north.csv", "south.csv")))),
    mistake("labels yes and no", "train job.toml", "silo 'bank', column 'y'", "wants 0 and 1, and these are no, yes",
            "labels = { positive = … }", "in row 8", after=LABELS_YES),
    mistake("misspelt label", "train job.toml --set labels.positive=Yes", "labels.positive: no label is 'Yes'",
            "there is no, yes", after=LABELS_YES),
    mistake("text as a target", "train job.toml --set training.loss=squared-error", "silo 'bank', column 'y'",
            "squared-error wants numbers, not texts such as 'no'", "in row 8", after=LABELS_YES),
    mistake("label as a feature", "train job.toml", "silos.bank.columns: 'y' is the label, not a feature",
            after=silo_key('columns = ["x", "y"]')),
    mistake("misspelt column", "train job.toml", BANK, "it has no column 'jobb' (silos.bank.exclude)",
            "did you mean 'job'?", after=silo_key('exclude = ["jobb"]')),
    mistake("other columns at a client", "train job.toml", "silo 'bank', client 'south' (",
            "not those of client 'north': it lacks job and it has work", "silos.bank.columns",
            after=line("south.csv", 1, "who,x,work,y")),
    mistake("IDs and nothing else", "train job.toml", INSURER, "it has no columns of features",
            after=lines("all.csv", lambda rows: [row.split(",")[0] for row in rows])),
    mistake("column without a name", "train job.toml", INSURER, "column 2 has no name in the first line",
            after=line("all.csv", 1, "person,")),
    mistake("Parquet that is none", "train job.toml", BANK, "named .parquet but holds something else",
            "Rename it to .csv",
            after=both(edit("job.toml", "north.csv", "north.parquet"), write("north.parquet", "who,x\n1,2\n"))),
    mistake("Parquet that is cut off", "train job.toml", BANK, "damaged, cannot be read as Parquet",
            after=both(as_parquet("north.csv", {}),
                       lambda: Path("north.parquet").write_bytes(Path("north.parquet").read_bytes()[:300]))),
    mistake("files and a number", "train job.toml", "silos.insurer: name a file for each client", 'file = "all.csv"',
            after=insurer_as("clients = 3")),
    mistake("clients without files", "train job.toml", "silos.insurer.clients names clients without files",
            'clients = { only = "FILE.csv" }', after=insurer_as('clients = ["only"]')),
    mistake("pattern without files", "train job.toml", 'clients = "nowhere/*.csv": no matching file',
            after=insurer_as('clients = "nowhere/*.csv"')),
    mistake("no such alignment", "train job.toml --set data.alignment=a.parquet", "a.parquet: no such alignment",
            "tdcd align"),
    mistake("no such split", "train job.toml --set data.split_column=part", "no silo's tables have a column 'part'"),
    mistake("split by other words", "train job.toml --set data.split_column=job", "data.split_column: 'job' says a, b",
            "train, validation, test"),
]  # fmt: skip

NEW = "--table bank=north.csv --table insurer=all.csv"


def train_here() -> None:
    """Train the job of this folder, so that its run knows the tables that are here."""
    remove("run")()
    train("job.toml", "run")


RUNS = [
    mistake("resume nothing", "train --resume nowhere", "nowhere: no such directory"),
    mistake("resume an empty directory", "train --resume empty", "empty is not a run: it has no job.toml"),
    mistake("resume elsewhere", "train --resume run -o other", "--resume goes on in the run's own directory", "--out"),
    mistake("resume a folder with a job", "train --resume .", ". is not a run", "tdcd train job.toml"),
    mistake("report of a folder with a job", "report .", ". is not a run: it has a job.toml and nothing else of a run"),
    mistake("train beside the job", "train job.toml -o .", ". has a job.toml, which that of the run would replace"),
    mistake("resume another job", "train digits --resume run", "run was started with another job",
            "data.source: tables there, digits here"),
    mistake("resume for fewer rounds", "train --resume run -R 1", "training.rounds: 2 there, 1 here"),
    mistake("resume with other tables", "train --resume run -R 4 -q", "run: not what it was started with",
            "training data", "start a new run", after=both(train_here, lines("north.csv", lambda rows: rows[:-1]))),
    mistake("train over a run", "train job.toml -o run", "run already holds a run", "tdcd train --resume run"),
    mistake("train to a file", "train job.toml -o all.csv", "all.csv is a file; name a directory"),
    mistake("train below a file", "train job.toml -o all.csv/run", "all.csv/run: cannot be written: Not a directory"),
    mistake("train over a sweep", "train job.toml -o tiny", "tiny already holds a sweep; choose another directory",
            after=both(lambda: Path("tiny").mkdir(), write("tiny/sweep.json", "{}"))),
    mistake("sweep over a run", "sweep sweep.toml -o run", "run already holds a run", "choose another directory"),
    mistake("sweep to a file", "sweep sweep.toml -o all.csv", "all.csv is a file; name a directory"),
    mistake("report over a run", "report run digits-run --out run", "--out run: its own report would be replaced"),
    mistake("report of an empty directory", "report empty", "empty is not a run: it has no job.toml"),
    mistake("report of a folder of runs", "report folder", "there are runs in it, such as folder/one",
            after=lambda: shutil.copytree("run", "folder/one")),
    mistake("report of several to nowhere", "report run digits-run", "say with --out where the report"),
    mistake("report below a file", "report run digits-run --out all.csv", "all.csv/report: cannot be made"),
    mistake("misspelt metric", "report run --metric accuarcy", "'accuarcy' was not measured", "mean 'accuracy'?"),
    mistake("compare what is not there", "compare run rnu", "rnu: no such directory"),
    mistake("negative latency", "compare run --t-comm -5", "t_comm: should be greater than or equal to 0"),
    mistake("predict without a silo", "predict run --table bank=north.csv", "a table of every silo is needed",
            "there is none for insurer"),
    mistake("predict for no silo", f"predict run {NEW} --table bnak=north.csv", "'bnak' is no silo of run",
            "did you mean 'bank'?"),
    mistake("predict without =", "predict run --table north.csv", "--table north.csv: write it as SILO=FILE"),
    mistake("predict from nowhere", "predict run --table bank=nort.csv --table insurer=all.csv", "silo 'bank'",
            "(nort.csv): no such file"),
    mistake("predict from swapped tables", "predict run --table bank=all.csv --table insurer=north.csv", "silo 'bank'",
            "(all.csv): it has no column 'who'"),
    mistake("predict without a column", f"predict run {NEW}", "silo 'insurer'", "(all.csv): it has no column 'z'",
            after=line("all.csv", 1, "person,w")),
    mistake("predict with a label of its own", f"predict run {NEW}", "silo 'bank', column 'y': unknown label 7",
            "in row 12 of silo 'bank' (north.csv)", "leave the column out",
            after=line("north.csv", 13, "11,2.5,a,7")),
    mistake("predict a text for a number", f"predict run {NEW}", "silo 'insurer'", "(all.csv): column 'z' holds",
            "row 3 the text 'big'", after=line("all.csv", 4, "7,big")),
    mistake("predict a number for a text", f"predict run {NEW}", "silo 'bank'", "(north.csv): column 'job' holds",
            "row 1 is the number '1'", after=both(edit("north.csv", ",a,", ",1,"), edit("north.csv", ",b,", ",2,"))),
    mistake("predict a table twice", f"predict run {NEW} --table bank=north.csv", "40 IDs stand for several rows"),
    mistake("predict where tables are images", "predict digits-run --table left=all.csv", "digits-run: it was trained "
            "on digits, not on tables"),
    mistake("predict without weights", f"predict run {NEW}", "run/blocks/bank.safetensors: missing",
            after=remove("run/blocks")),
    mistake("predict what has not ended", f"predict run {NEW}", "run: it has not ended", "tdcd train --resume run",
            after=remove("run/result.json")),
    mistake("predict from other tables", "predict run", "no longer those that it was trained on",
            "--table SILO=FILE", after=both(train_here, lines("north.csv", lambda rows: rows[:-1]))),
    mistake("predict over a file", f"predict run {NEW} -o all.csv", "all.csv exists already and is left as it is"),
    mistake("predict to a folder", f"predict run {NEW} --force -o f.csv", "--out f.csv: this is a folder; name a file",
            after=lambda: Path("f.csv").mkdir()),
    mistake("evaluate without a silo", "evaluate run --table bank=north.csv", "there is none for insurer: --table "
            "insurer=FILE."),
    mistake("predict to a spreadsheet", f"predict run {NEW} -o p.xlsx", "--out p.xlsx: name a .csv or a .parquet"),
    mistake("predict to nowhere", f"predict run {NEW} -o no/p.csv", "--out no/p.csv: there is no folder no; make it"),
]  # fmt: skip

SWEEPS = [
    mistake("unknown key in a grid", "sweep sweep.toml", "sweep.toml: ", "job.toml: training: unknown key "
            "'local_stepz'; did you mean 'local_steps'?",
            after=edit("sweep.toml", "local_steps", "local_stepz")),
    mistake("empty list", "sweep sweep.toml", "grid: training.local_steps: a list of values is wanted", "(is [])",
            after=edit("sweep.toml", "[1, 2]", "[]")),
    mistake("number for a list", "sweep sweep.toml", "grid: training.local_steps: a list of values is wanted", "(is 2)",
            after=edit("sweep.toml", "[1, 2]", "2")),
    mistake("negative value in a grid", "sweep sweep.toml", "training.local_steps: should be greater than 0 (is -2)",
            after=edit("sweep.toml", "[1, 2]", "[1, -2]")),
    mistake("value twice", "sweep sweep.toml", "grid: training.local_steps: a value is there twice",
            after=edit("sweep.toml", "[1, 2]", "[1, 1]")),
    mistake("part of a round", "sweep sweep.toml", "iterations: 5 local steps are no whole number of rounds of Q = 2",
            "4 or 6", after=edit("sweep.toml", "iterations = 4", "iterations = 5")),
    mistake("slash in a sweep's name", "sweep sweep.toml", "sweep.toml: name: names a directory", "(is 'a/b')",
            after=edit("sweep.toml", '"tiny"', '"a/b"')),
    mistake("no seed", "sweep sweep.toml", "sweep.toml: seeds: ", "at least 1 item",
            after=edit("sweep.toml", "[1]", "[]")),
    mistake("no such sweep", "sweep sweeps.toml", "sweeps.toml: no such sweep file; docs/sweeps.md shows one"),
    mistake("no such job of a sweep", "sweep sweep.toml", "loans.toml: no such job file",
            after=edit("sweep.toml", "job.toml", "loans.toml")),
    mistake("--set of what is varied", "sweep sweep.toml --set training.local_steps=2",
            "the sweep varies training.local_steps; leave one of the two out"),
    mistake("rounds of a sweep", "sweep sweep.toml", "settings: training.rounds: write iterations",
            after=write("sweep.toml", SWEEP + "[settings]\ntraining.rounds = 5\n")),
    mistake("metric that is not measured", "sweep sweep.toml", "report.metric: 'acc' is not measured with", "accuracy",
            after=write("sweep.toml", SWEEP + '[report]\nmetric = "acc"\n')),
    mistake("unknown scale", "reproduce cifar10 --scale huge", "scale: 'huge' is not known; there is paper, small"),
]  # fmt: skip

AT_HUB, AT_CLIENT = "hub job.toml --silo bank", "client job.toml --silo bank --client north"
SITES = [
    mistake("hub of no silo", "hub job.toml --silo bnak", "the job has no silo 'bnak'; did you mean 'bank'?"),
    mistake("hub of nobody", "hub job.toml", "Missing option '--silo'"),
    mistake("no such client", "client job.toml --silo bank --client nort", "silo 'bank' has no client 'nort'",
            "did you mean 'north'?"),
    mistake("no such site file", f"{AT_HUB} --site site.toml", "site.toml: no such site file", "docs/deployment.md"),
    mistake("hub's file at a client", f"{AT_CLIENT} --site hub.toml", "hub.toml: this is the site file of a hub, not "
            "the site file of a client"),
    mistake("client's file at a hub", f"{AT_HUB} --site client.toml", "client.toml: this is the site file of a client"),
    mistake("job as a site file", "status job.toml", "job.toml: this is a job file, not the site file of a hub"),
    mistake("site file as a job", "hub hub.toml --silo bank", "hub.toml: this is a site file, for --site; name"),
    mistake("address without a port", AT_CLIENT, "client.toml: hub: is a host and a port", "(is '127.0.0.1')",
            after=edit("client.toml", "127.0.0.1:7100", "127.0.0.1")),
    mistake("address of a web page", AT_CLIENT, "client.toml: hub: is a host and a port", "(is 'https://127.0.0.1:7100')",
            after=edit("client.toml", "127.0.0.1:7100", "https://127.0.0.1:7100")),
    mistake("certificates not made", AT_HUB, "hub.pem: cannot be read: No such file", "made by: tdcd certs",
            after=remove("certs")),
    mistake("certificates not named", AT_CLIENT, "client 'north' of silo 'bank': its site file names no certificates",
            "tdcd certs", "--insecure", after=write("client.toml", CLIENT.partition("[tls]")[0])),
    mistake("another's certificate", AT_CLIENT, "client-north.key: it is not the key of", "client-south.pem",
            after=edit("client.toml", "client-north.pem", "client-south.pem")),
    mistake("CA of another silo", AT_CLIENT, "client-north.pem: ", "the CA of silo 'bank' has not signed it",
            after=edit("client.toml", "bank/ca.pem", "insurer/ca.pem")),
    mistake("certificate that is none", AT_CLIENT, "client-north.pem: damaged, not a certificate in PEM form",
            after=write("certs/bank/client-north.pem", "hello")),
    mistake("other hubs not named", AT_HUB, "peers: no entry for silo insurer",
            after=edit("hub.toml", 'peers = { insurer = "127.0.0.1:7101" }', "")),
    mistake("another hub that is none", AT_HUB, "peers: 'inshurer' is no other silo of the job; did you mean 'insurer'",
            after=edit("hub.toml", 'peers = { insurer = "127', 'peers = { inshurer = "127.0.0.1:1", insurer = "127')),
    mistake("insecure across machines", f"{AT_CLIENT} --insecure", "hub.bank.example:7100 is not on this machine",
            "tdcd certs", after=edit("client.toml", "127.0.0.1:7100", "hub.bank.example:7100")),
    mistake("no such table at a site", AT_CLIENT, BANK, "nowhere.csv): no such file",
            after=edit("client.toml", "north.csv", "nowhere.csv")),
    mistake("no table at a site", AT_CLIENT, "client 'north' of silo 'bank': its site file names no table",
            'data = "north.csv"', after=edit("client.toml", 'data = "north.csv"', "")),
    mistake("check of certificates not made", "certs job.toml --silo bank --check hub.toml", "hub.pem: cannot be read",
            "made by: tdcd certs", after=remove("certs")),
    mistake("check of another silo", "certs job.toml --silo insurer --check hub.toml",
            "hub.pem: it is of the hub of silo 'bank', not of silo 'insurer'"),
    mistake("renew nothing", "certs job.toml --silo bank --renew", "there is no CA (ca.pem) to renew certificates with",
            after=remove("certs")),
    mistake("certificates for ever", "certs job.toml --silo bank --out new --days 99999999", "value for '--days'",
            "less than or equal to 36500"),
    mistake("status of a hub that is away", "status hub.toml", "the hub at 127.0.0.1:7100 does not answer",
            "is it started, and is the address right?"),
    mistake("deploy everywhere", "deploy job.toml", "say --local", "tdcd hub and tdcd client"),
    mistake("deploy to a file", "deploy job.toml --local -o all.csv", "all.csv: cannot be made: File exists; choose "
            "another with --out"),
    mistake("deploy into a run", "deploy job.toml --local -o run", "run holds another deployment; choose"),
    mistake("deploy without files", "deploy job.toml --local", "silos.insurer.clients: ", "name every client's file",
            after=insurer_as('clients = ["only"]')),
]  # fmt: skip


WARNINGS = [
    mistake("resume what has ended", "train --resume run", "finished before: 2 of 2 rounds"),
    mistake("compare other data", "compare run digits-run", "metrics do not compare. run: tables, 55 samples, "
            "binary-cross-entropy; digits-run: digits, 1,797 samples, cross-entropy"),
    mistake("classify amounts", "check job.toml", "warning: labels: there are 47 classes in 47 training rows",
            'training.loss = "squared-error"', after=both(edit("job.toml", "binary-", ""), *(
                lines(f, lambda rows: [rows[0], *(f"{row[:-1]}{row.split(',')[0]}.25" for row in rows[1:])])
                for f in ("north.csv", "south.csv")))),
    mistake("predict unknown categories", f"predict run {NEW}", "silo 'bank', column 'job': 18 of 35 rows hold "
            "categories that are unknown in training: 'c'", after=edit("north.csv", ",b,", ",c,")),
]  # fmt: skip


@pytest.mark.usefixtures("_in_a_copy")
@pytest.mark.parametrize(("words", "says", "change"), WARNINGS)
def test_what_can_be_done_but_looks_wrong_is_told(
    words: str, says: tuple[str, ...], change: Change | None, capfd: pytest.CaptureFixture[str]
) -> None:
    if change:
        change()
    capfd.readouterr()
    assert run_command(*split(words)) == 0
    printed = " ".join("".join(capfd.readouterr()).split())
    for text in says:
        assert text in printed


@pytest.mark.usefixtures("_in_a_copy")
def test_files_may_begin_with_a_mark() -> None:
    """Some editors write one, and nobody sees it."""
    for name in FILES:
        encode(name, "utf-8-sig")()
    for words in ("check job.toml", "sweep sweep.toml --list", "certs job.toml --silo bank --check hub.toml"):
        assert run_command(*split(words)) == 0


@pytest.mark.usefixtures("_in_a_copy")
@pytest.mark.parametrize(("words", "says", "change"), [*COMMANDS, *SETTINGS, *TABLES, *RUNS, *SWEEPS, *SITES])
def test_a_mistake_is_explained_and_nothing_is_lost(
    words: str, says: tuple[str, ...], change: Change | None, capfd: pytest.CaptureFixture[str]
) -> None:
    if change:
        change()
    before = files()
    capfd.readouterr()
    code = run_command(*split(words))
    printed = capfd.readouterr()
    assert code == 2, printed
    assert "Traceback" not in printed.out + printed.err
    for text in says:
        assert text in printed.err
    assert files() == before
