"""Write the tables of a bank and an insurer: what `loans.toml` and `income.toml` beside this file train on.

    python examples/bank_insurer/make_tables.py --credit credit_default.csv    # default of credit card clients, UCI
    python examples/bank_insurer/make_tables.py                                # that if it is here, or built-in data
    python examples/bank_insurer/make_tables.py --adult DIRECTORY              # adult.data and adult.test, UCI

The bank has three branches and the insurer four agencies, of very unequal size. Each organisation knows most of the
people, not all, and everyone's rows lie in an order of their own. The files go to `loans/` or `income/` beside the
jobs. Twenty people come later: `new-bank.csv`, `new-insurer.csv`, and the same people's rows by branch in `new/`.
"""

import argparse
import lzma
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.datasets import load_breast_cancer

HERE = Path(__file__).parent
BRANCHES = {
    "bank": {"centre.csv": 0.60, "north.csv": 0.30, "harbour.csv": 0.10},
    "insurer": {"direct.parquet": 0.45, "brokers.csv": 0.35, "online.csv": 0.15, "kiosk.csv": 0.05},
}
KNOWN = {"bank": 0.95, "insurer": 0.90}
"""The share of people that each organisation knows."""

NEW = 20
"""People who come later, to predict."""
LATER = ["default", "income", "part"]
"""What nobody knows of them yet."""
CREDIT = "default.payment.next.month"
ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education_years", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours", "country", "income"),
)


def credit(path: Path) -> Mapping[str, pl.DataFrame]:
    """30,000 clients of a bank in Taiwan; the bank knows their limits, delays and bills, and who defaulted."""
    frame = pl.read_csv(_opened(path), infer_schema_length=None).rename({"ID": "customer", CREDIT: "default"})
    texts = {
        "SEX": {1: "male", 2: "female"},
        "EDUCATION": {1: "graduate school", 2: "university", 3: "high school", 4: "others"},
        "MARRIAGE": {1: "married", 2: "single", 3: "others"},
    }
    frame = frame.with_columns(pl.col(name).replace_strict(words, default="unknown") for name, words in texts.items())
    insurer = ["SEX", "EDUCATION", "MARRIAGE", "AGE", *(f"PAY_AMT{month}" for month in range(1, 7))]
    return {"bank": frame.drop(insurer), "insurer": frame.select("customer", *insurer)}


def adult(directory: Path) -> Mapping[str, pl.DataFrame]:
    """48,842 people of a census; the bank knows their work and income, the insurer their circumstances.

    The published test set is for testing; of the others, every tenth is for validation.
    """
    frames = []
    for name, part in (("adult.data", "train"), ("adult.test", "test")):
        lines = [line for line in (directory / name).read_text().splitlines() if line.count(",") == len(ADULT) - 1]
        rows = [[cell.strip().rstrip(".") for cell in line.split(",")] for line in lines]
        frames.append(pl.DataFrame(rows, schema=list(ADULT), orient="row").with_columns(part=pl.lit(part)))
    numbers = pl.col("age", "fnlwgt", "education_years", "capital_gain", "capital_loss", "hours")
    frame = pl.concat(frames).with_columns(numbers.cast(pl.Int64)).with_row_index("person", offset=100_000)
    tenth = (pl.col("part") == "train") & (pl.col("person") % 10 == 0)
    frame = frame.with_columns(part=pl.when(tenth).then(pl.lit("validation")).otherwise("part"))
    frame = frame.with_columns(person=pl.format("P{}", "person"))
    bank = ["person", "workclass", "occupation", "hours", "capital_gain", "capital_loss", "income", "part"]
    return {"bank": frame.select(bank), "insurer": frame.drop(bank[1:])}


def built_in() -> Mapping[str, pl.DataFrame]:
    """569 tumours instead of customers: the bank has four measurements and the diagnosis, the insurer five others."""
    bunch = load_breast_cancer()
    frame = pl.DataFrame(bunch.data, schema=[str(name) for name in bunch.feature_names])
    frame = frame.with_columns(customer=pl.arange(1, pl.len() + 1), default=pl.Series(1 - bunch.target))
    bank = [f"mean {name}" for name in ("texture", "smoothness", "symmetry", "fractal dimension")]
    insurer = ["mean compactness", *(f"{name} error" for name in ("radius", "texture", "compactness", "concavity"))]
    return {"bank": frame.select("customer", *bank, "default"), "insurer": frame.select("customer", *insurer)}


def write(tables: Mapping[str, pl.DataFrame], directory: Path, seed: int = 2021) -> None:
    """Deal every organisation's rows to its branches and write a file for each; the last 20 people come later.

    They are written twice: all of an organisation in one file, to predict where all is in one place, and dealt to its
    branches in `new/`, without what the bank will only know later, to predict across sites.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for number, (silo, everyone) in enumerate(tables.items()):
        new = everyone.tail(NEW)
        new.write_csv(directory / f"new-{silo}.csv")
        table = everyone.head(-NEW)
        generator = np.random.default_rng((seed, number))
        known = generator.permutation(table.height)[: round(KNOWN[silo] * table.height)]
        for path, rows in deal(table, known, silo, directory / silo):
            print(f"{path}: {rows.height} rows of {rows.width} columns")
        later = new.drop(LATER, strict=False)
        list(deal(later, generator.permutation(NEW), silo, directory / "new" / silo))
        if not number:
            identity = later.columns[0]
            later.select(identity).write_csv(directory / "new-ids.csv")


def deal(table: pl.DataFrame, order: np.ndarray, silo: str, folder: Path) -> Iterator[tuple[Path, pl.DataFrame]]:
    """Write a file of rows for each of an organisation's branches; yield them."""
    ends = np.cumsum([0, *BRANCHES[silo].values()]) * len(order)
    folder.mkdir(parents=True, exist_ok=True)
    for branch, name in enumerate(BRANCHES[silo]):
        rows = table[order[round(ends[branch]) : round(ends[branch + 1])].tolist()]
        path = folder / name
        rows.write_csv(path) if path.suffix == ".csv" else rows.write_parquet(path)
        yield path, rows


def _opened(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


def main() -> None:
    """Choose the source and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--credit", type=Path, help="the credit-default table, as CSV (or CSV.xz)")
    parser.add_argument("--adult", type=Path, help="the directory of adult.data and adult.test")
    parser.add_argument("--out", type=Path, default=HERE, help="where to write, with the jobs; default: beside this")
    options = parser.parse_args()
    if options.out != HERE:
        options.out.mkdir(parents=True, exist_ok=True)
        for job in HERE.glob("*.toml"):
            shutil.copy(job, options.out)
    if options.adult:
        write(adult(options.adult), options.out / "income")
        print(f"Train with: tdcd train {options.out / 'income.toml'}")
        return
    here = (folder / name for folder in (Path(), HERE) for name in ("credit_default.csv", "credit_default.csv.xz"))
    result = options.credit or next((path for path in here if path.exists()), None)
    if result:
        write(credit(result), options.out / "loans")
    else:
        print("There is no credit_default.csv here: the built-in tumours stand in for customers.")
        write(built_in(), options.out / "loans")
    job = options.out / "loans.toml"
    print(f"Train with: tdcd align {job} && tdcd train {job}")


if __name__ == "__main__":
    main()
