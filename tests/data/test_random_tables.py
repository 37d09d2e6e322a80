"""Random CSV and TSV files of pandas and csv, compared with Python's csv module and the original cells."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pandas as pd
import pytest

from multicse.data.errors import DataError
from tests.data.test_table_files import Rows, rows_of

pytest.importorskip("hypothesis", reason="random tables are made by the package hypothesis (extra `test`)")
from hypothesis import event, given, settings
from hypothesis import strategies as st

CELL = st.text(st.sampled_from("ab \"'\\,;|\t\n\r\x0b\x85\u2028éß漢😀#=-0"), max_size=8)
TABLES = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), max_size=6))
UNQUOTED = {"\n": "\r", "\r\n": r"\b\B", "\r": "\n"}
"""Line ends in a cell for which csv does not quote it, by the line end of the rows."""
ENDS = st.sampled_from(sorted(UNQUOTED))
RANDOM = settings(max_examples=150, deadline=None, derandomize=True)


def rows_by_csv(content: bytes, separator: str) -> Rows:
    """The cells that Python's csv module reads, without blank lines."""
    lines = io.StringIO(content.decode("utf-8-sig"), newline="")
    rows = [row for row in csv.reader(lines, delimiter=separator) if row]
    return [rows[0], *(row for row in rows[1:] if len(rows[0]) == 1 or len(row) > 1 or row[0].strip())]


@RANDOM
@given(TABLES, st.sampled_from(",;\t|^"), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), ENDS, st.data())
def test_a_random_csv_is_that_of_pandas_and_csv(rows: Rows, separator: str, quoting: Any, end: str, data: Any) -> None:
    """Every row, or an error. Only a line end that the writer did not quote makes other rows, for all readers alike."""
    columns = [f"c{i}" for i in range(len(rows[0]) if rows else 1)]
    if data.draw(st.booleans(), "by pandas"):
        written = pd.DataFrame(rows, columns=columns).to_csv(index=False, sep=separator, quoting=quoting, lineterminator=end)
    else:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end).writerows([columns, *rows])
        written = text.getvalue()
    content = written.encode(data.draw(st.sampled_from(["utf-8", "utf-8-sig"])))
    guessed = separator in ",;\t|" and len(columns) > 1 and data.draw(st.booleans(), "separator guessed")
    options = {} if guessed else {"separator": separator}
    wanted = rows_by_csv(content, separator)
    try:
        found = rows_of(content, data.draw(st.sampled_from(["x.csv", "x.csv.gz"])), **options)
    except DataError:
        event("refused")
        assert any(len(row) != len(columns) for row in wanted), "every row had its cells"
        return
    assert found == (wanted if wanted[1:] else [[]])
    if quoting == csv.QUOTE_ALL or not re.search(UNQUOTED[end], "".join(map("".join, rows))):
        event("without quotation")
        assert found == ([columns, *rows] if rows else [[]])


@RANDOM
@given(TABLES, ENDS, st.booleans())
def test_a_random_tsv_is_read_as_specified(rows: Rows, end: str, quoted: bool) -> None:
    """With quotation where it is specified; without it otherwise, unless a cell looks quoted."""
    if not rows:
        return
    rows = [[re.sub(UNQUOTED[end], " ", cell) for cell in row] for row in rows]
    columns = [f"c{i}" for i in range(len(rows[0]))]
    text = io.StringIO(newline="")
    if quoted:
        csv.writer(text, "excel-tab", lineterminator=end).writerows([columns, *rows])
        assert rows_of(text.getvalue().encode(), "x.tsv", quoted=True) == rows_by_csv(text.getvalue().encode(), "\t")
        return
    rows = [[re.sub(r"[\t\r\n]", " ", cell) for cell in row] for row in rows]
    rows = [row for row in rows if len(row) > 1 or row[0]]
    csv.writer(text, "excel-tab", lineterminator=end, quoting=csv.QUOTE_NONE, quotechar=None).writerows([columns, *rows])
    wanted = [columns, *rows] if rows else [[]]
    assert rows_of(text.getvalue().encode(), "x.tsv", quoted=False) == wanted
    if any(re.fullmatch(r'""|".*"".*"', cell, re.DOTALL) for row in rows for cell in row):
        with pytest.raises(DataError, match="looks quoted"):
            rows_of(text.getvalue().encode(), "x.tsv")
    else:
        assert rows_of(text.getvalue().encode(), "x.tsv") == wanted
