"""The README.md beside an exported model: how to call it, with an example that runs as it stands."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdcd.errors import join_names
from tdcd.serving.export.inputs import SiloInput

_ONNX = """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
rows = {{
{rows}
}}
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(None, rows)))
print(outputs["scores"]{more})
"""
_TORCH = """import torch

model = torch.export.load("{file}").module()
rows = {{
{rows}
}}
with torch.no_grad():
    outputs = model(rows)
print(outputs["scores"]{more})
"""
_KINDS = {
    "cells": "the cells of a table as texts, without spaces around them: numbers as 1234.5, nothing for no value",
    "prepared": "the numbers that a table is prepared as; export.json describes them",
    "rows": "rows as in training",
}
_PAGE = """# {name}

A model trained by tdcd {tdcd}: round {round:,}, {loss}. `{file}` is the whole model, `silos/` has the
embedding of each silo alone, and `export.json` tells programs what this page tells people. Row i of every input is the
same sample.

```python
{example}```

| input | type, shape | what |
|---|---|---|
{inputs}

| output | what |
|---|---|
{outputs}

{more}
Compared with tdcd on {rows} random rows: it differs by {difference:.2g} at most, of numbers above 1 as a part of them.
"""
_UNREADABLE = """A cell that cannot be read (a text in a column of numbers, an infinite number, spaces around it, a
number or a date in a column of texts) makes its row unreadable: scores and probabilities are NaN, the class is -1, and
`SILO.unreadable` names the column. Other rows of the batch are not affected. A category that training did not know is
no error.
"""
_PICKLE = """`torch.export.load` runs code that a file may bring along: load only files that come from people whom you
trust. Nothing in these files is pickled; `export.json` has their SHA-256.
"""


def write_readme(record: Mapping[str, Any], inputs: Sequence[SiloInput]) -> str:
    """Return the text.

    Args:
        record: What export.json says.
        inputs: What the silos take.
    """
    onnx = record["format"] == "onnx"
    file = "model.onnx" if onnx else "model.pt2"
    shown = [f"    {json.dumps(own.silo, ensure_ascii=False)}: {_example(own, onnx=onnx)}," for own in inputs]
    said = ', outputs["class"]' if "class" in record["outputs"] else ""
    more = [f"Classes in order: {', '.join(record['classes'])}.\n"] if record["classes"] else []
    for own in inputs:
        if own.settings:
            none = join_names(["an empty text", *own.settings.missing], 100)
            more.append(f"Columns of `{own.silo}` in order: {', '.join(own.names)}. No value: {none}.\n")
    more += [_UNREADABLE] * any(own.kind == "cells" for own in inputs) + [_PICKLE] * (not onnx)
    described = record["inputs"].items()
    return _PAGE.format(
        **{key: record[key] for key in ("name", "tdcd", "round", "loss")},
        file=file,
        example=(_ONNX if onnx else _TORCH).format(file=file, rows="\n".join(shown), more=said),
        inputs="\n".join(
            f"| `{silo}` | {given['type']} ({', '.join(map(str, given['shape']))}) | {_KINDS[given['kind']]} |"
            for silo, given in described
        ),
        outputs="\n".join(f"| `{name}` | {what} |" for name, what in record["outputs"].items()),
        more="\n".join(more),
        rows=record["checked"]["rows"],
        difference=record["checked"]["largest difference"],
    )


def _example(own: SiloInput, *, onnx: bool) -> str:
    """Return two rows as code."""
    if own.kind == "cells":
        cells = own.draw(np.random.default_rng(1), 2).tolist()
        return f"np.array({json.dumps(cells, ensure_ascii=False)}, dtype=object)"
    shape = ", ".join(map(str, (2, *own.shape)))
    return f'np.zeros(({shape}), dtype="{own.dtype}")' if onnx else f"torch.zeros({shape}, dtype={own.fed})"
