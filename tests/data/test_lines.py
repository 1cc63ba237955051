import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data import lines


@given(
    st.lists(st.lists(st.sampled_from(["", "a", "12", " "]), min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(3, 40),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_odd_lines_are_found_whatever_the_chunks(rows: list[list[str]], chunk: int, end: str, last: bool) -> None:
    path = Path(__file__).with_name("unused")
    text = end.join(",".join(row) for row in rows) + (end if last else "")
    seen = list(csv.reader(io.StringIO(text, newline="")))
    expected = next(((n, len(row)) for n, row in enumerate(seen, start=1) if row and len(row) != 3), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK", chunk)
        patch.setattr(Path, "open", lambda self, mode: io.BytesIO(text.encode()))
        found = lines.odd_line(path, ",", 3)
    if rows[-1] in ([" "], [""]) and not last:  # a last line of blanks without its end is as good as none
        return
    assert found == expected


def test_quoted_cells_are_left_to_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('id,a\n1,"x, y"\n2\n')
    assert lines.odd_line(path, ",", 2) is None


@pytest.mark.parametrize(("text", "count"), [("a\n", 0), ("a", 0), ("a\n\n\n", 2), ("a\r\n\r\n", 1), ("", 0)])
def test_empty_lines_at_the_end(tmp_path: Path, text: str, count: int) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    assert lines.empty_at_the_end(path) == count
