import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.tables import csv_lines as lines

CELL = st.sampled_from(["", "a", "12", " ", "x, y", 'say "no"', "two\nlines", '"'])


def spans_of(text: str, chunk: int, width: int = 3, span: int = 1000) -> tuple[lines.Span, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK", chunk)
        patch.setattr(lines, "SPAN", span)
        return lines.find_spans(io.BytesIO(text.encode()), ",", width)


def counted(text: str, chunk: int, width: int = 3) -> int:
    return sum(span.rows for span in spans_of(text, chunk, width))


@given(
    st.lists(st.lists(CELL, min_size=2, max_size=4), min_size=1, max_size=12),
    st.integers(1, 60),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(0, 3),
    st.integers(1, 60),
)
def test_rows_are_found_whatever_the_chunks(rows: list[list[str]], chunk: int, end: str, ends: int, span: int) -> None:
    """What a writer of CSV files writes is read as it was meant; a row of another width is found."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator=end).writerows(rows)
    text = buffer.getvalue().removesuffix(end) + ends * end
    wrong = next((n for n, row in enumerate(rows) if len(row) != 3), None)
    if wrong is None:
        spans, data = spans_of(text, chunk, span=span), text.encode()
        read = [list(csv.reader(io.StringIO(data[a:b].decode(), newline=""))) for a, b, _ in spans]
        assert [len([row for row in some if row]) for some in read] == [count for _, _, count in spans]
        assert [row for some in read for row in some if row] == rows[1:]
        assert all(a[1] == b[0] for a, b in pairwise(spans)), "one after the other"
        return
    line = 1 + sum(cell.count("\n") for row in rows[:wrong] for cell in row) + wrong
    with pytest.raises(lines.LineError, match=f"line {line} has {len(rows[wrong])} cells, the first line 3"):
        counted(text, chunk)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b,c\n1,2,5" pipe\n1,2,6" pipe\n', "line 2 has a quote within a cell"),
        ('a,b,c\n1,"x"y,3\n', "line 2 has a quote within a cell"),
        ('a,b,c\n1, "x",3\n', "line 2 has a quote within a cell"),
        ('a,b,c\n1,"x,3\n4,5,6\n', "a quote that opens in line 2 is not closed"),
        ("a,b,c\n\n4,5,6\n", "line 2 is empty; remove it"),
        ("a,b,c\n1,2,3\r\n\r\n\r\n4,5,6\n", "line 3 is empty; remove it"),
        ("a,b,c\n1,2\n4,5,6\n", "line 2 has 2 cells, the first line 3; is it cut off"),
        ("a,b,c\n1,2,3\n4,5", "line 3 has 2 cells, the first line 3"),
    ],
)
def test_lines_out_of_order(text: str, message: str, chunk: int) -> None:
    with pytest.raises(lines.LineError, match=message):
        counted(text, chunk)


def test_a_mark_of_utf8_and_a_quoted_header() -> None:
    assert counted('\ufeff"a",b,c\n1,2,3\n', 100) == 1


def test_one_column() -> None:
    assert counted("a\n1\n2\n", 3, width=1) == 2


def test_a_quote_that_swallows_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 100)
    with pytest.raises(lines.LineError, match="a quote that opens in line 2 is not closed"):
        counted('a,b,c\n1,2,"3\n' + "4,5,6\n" * 1000, 10)
