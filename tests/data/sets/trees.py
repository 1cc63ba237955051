"""Small made-up trees in the publishers' layouts."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tdcd.data.sets import cifar10
from tdcd.data.sets.mimic3 import CHANNELS


def cifar(root: Path, images: int) -> np.ndarray:
    """Write CIFAR-10 with so many images a file; return the records (files, images, bytes)."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    records = np.random.default_rng(0).integers(0, 256, (6, images, cifar10.RECORD), dtype=np.uint8)
    records[:, :, 0] %= 10
    for name, part in zip(cifar10.FILES, records, strict=True):
        (folder / name).write_bytes(part.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(cifar10.CLASSES) + "\n\n")
    return records


def idx(root: Path, *, zipped: bool) -> dict[str, np.ndarray]:
    """Write an MNIST of 7 + 3 images of 4 × 6 pixels."""
    root.mkdir(exist_ok=True)
    generator = np.random.default_rng(1)
    arrays = {}
    for part, count in (("train", 7), ("t10k", 3)):
        arrays[f"{part}-images-idx3-ubyte"] = generator.integers(0, 256, (count, 4, 6), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8) % 3
    for name, array in arrays.items():
        data = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()
        (root / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)
    return arrays


def modelnet(root: Path, *, part_first: bool, folders: bool, mode: str = "L") -> None:
    """Write two classes of two shapes to train and one to test; pixel values tell shape and view."""
    for label, name in enumerate(("sofa", "bed")):
        for part, shapes in (("train", ("2", "10")), ("test", ("3",))):
            for shape in shapes:
                place = root / part / name if part_first else root / name / part
                if folders:
                    place /= f"{name}_{shape}"
                place.mkdir(parents=True, exist_ok=True)
                for view in range(1, 13):
                    value = 100 * label + 10 * int(shape) % 90 + view
                    colour = value if mode == "L" else (value, 0, 255)
                    Image.new(mode, (6, 4), colour).save(place / f"{name}_{shape}_{view:03d}.png")


def physionet(root: Path, stays: Sequence[tuple[str, int, int, Sequence[str]]]) -> None:
    """Write stays of (set, record, died, lines)."""
    for name in sorted({stay[0] for stay in stays}):
        (root / f"set-{name}").mkdir(parents=True, exist_ok=True)
        own = [stay for stay in stays if stay[0] == name]
        lines = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
        lines += [f"{record},6,1,5,-1,{died}" for _, record, died, _ in own]
        (root / f"Outcomes-{name}.txt").write_text("\n".join(lines) + "\n")
        for _, record, _, more in own:
            text = ["Time,Parameter,Value", f"00:00,RecordID,{record}", "00:00,Age,54", "00:00,Gender,0",
                    "00:00,Height,-1", f"00:00,ICUType,{1 + record % 4}", "00:00,Weight,-1", *more]  # fmt: skip
            (root / f"set-{name}" / f"{record}.txt").write_text("\n".join(text) + "\n")


def mimic(root: Path, stays: Sequence[tuple[str, str, int, Sequence[dict[str, str]]]]) -> None:
    """Write stays of (part, name, died, rows), each row by the names of its channels."""
    for part in ("train", "test"):
        folder = root / "in-hospital-mortality" / part
        folder.mkdir(parents=True, exist_ok=True)
        own = [stay for stay in stays if stay[0] == part]
        (folder / "listfile.csv").write_text("stay,y_true\n" + "".join(f"{name},{died}\n" for _, name, died, _ in own))
        for _, name, _, rows in own:
            lines = [",".join(["Hours", *CHANNELS])]
            lines += [",".join([row["Hours"], *(row.get(channel, "") for channel in CHANNELS)]) for row in rows]
            (folder / name).write_text("\n".join(lines) + "\n")
