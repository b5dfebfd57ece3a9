"""The index of JSONL rows: every row as written, every fault with its line."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.experience.jsonl import DataError, JsonlIndex


def written(folder: Path, content: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return path


def all_rows(index: JsonlIndex) -> list[dict]:
    return [index.row(i) for i in range(len(index))]


def test_strings_come_back_as_written_whatever_other_rows_hold(tmp_path: Path) -> None:
    # One row with another type makes some loaders retype the strings of all others.
    strings = ["007", "4", "1e5", "3.10", "true", "null", "[1, 2]", " 5 ", "NaN", "a\u2028b", "x\rx", "🦆"]
    lines = [json.dumps({"answer": s}, ensure_ascii=False) for s in strings] + ['{"answer": {"nested": 1}}']
    index = JsonlIndex(written(tmp_path, "\n".join(lines).encode()))
    assert [row["answer"] for row in all_rows(index)] == [*strings, {"nested": 1}]


def test_jagged_rows_keep_their_own_fields(tmp_path: Path) -> None:
    index = JsonlIndex(written(tmp_path, b'{"a": 1}\n{"b": [1, "x"]}\n{"a": null, "c": {}}\n'))
    assert all_rows(index) == [{"a": 1}, {"b": [1, "x"]}, {"a": None, "c": {}}]


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1}\n{"a": 2}',  # no final newline
        b'{"a": 1}\r\n{"a": 2}\r\n',
        b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n',  # byte-order mark
        b'\n  \n{"a": 1}\n\t\r\n{"a": 2}\n\n',  # blank lines
        b'\xef\xbb\xbf\n{"a": 1}\n{"a": 2}',
    ],
)
def test_line_ends_marks_and_blank_lines_change_no_row(tmp_path: Path, content: bytes) -> None:
    index = JsonlIndex(written(tmp_path, content))
    assert all_rows(index) == [{"a": 1}, {"a": 2}]
    assert index.skipped.count == 0


def test_line_numbers_count_every_line_of_the_file(tmp_path: Path) -> None:
    index = JsonlIndex(written(tmp_path, b'\n{"a": 1}\nbroken\n\n{"a": 2}\n'), bad_rows="skip")
    assert [index.line_number(i) for i in range(len(index))] == [2, 5]
    assert index.where(1) == f"{tmp_path / 'rows.jsonl'}, line 5"


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (b'{"a": ', "is not JSON"),
        (b'{"a": 1} {"a": 2}', "Extra data"),
        (b"[1, 2]", "is a JSON array, not an object"),
        (b'"text"', "is a JSON string"),
        (b"3", "is a JSON number"),
        (b"null", "is a JSON null"),
        (b"true", "is a JSON boolean"),
        (b'{"a": "caf\xe9"}', r"byte 11 \(0xe9\) is not UTF-8"),
        (b'{"a": "\\ud83d"}', "half a surrogate pair"),
        (b'{"a": ' + b"[" * 200_000, "is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_a_bad_line_is_an_error_with_its_place_or_a_counted_skip(tmp_path: Path, bad: bytes, what: str) -> None:
    path = written(tmp_path, b'{"a": 1}\n' + bad + b'\n{"a": 2}\n')
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2: .*{what}.*data\.bad_rows=skip"):
        JsonlIndex(path)
    index = JsonlIndex(path, bad_rows="skip")
    assert all_rows(index) == [{"a": 1}, {"a": 2}]
    assert index.skipped.count == 1


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    assert JsonlIndex(written(tmp_path, b'{"a": "\\ud83e\\udd86"}')).row(0) == {"a": "🦆"}


def test_utf_16_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl, line 1: the file is UTF-16; save it as UTF-8"):
        JsonlIndex(written(tmp_path, '{"a": 1}\n'.encode("utf-16")))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_an_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        JsonlIndex(written(tmp_path, content))


def test_a_file_of_only_bad_rows_is_an_error_even_where_they_are_skipped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no rows \(2 bad lines\)"):
        JsonlIndex(written(tmp_path, b"[1,\n2]\n"), bad_rows="skip")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl: there is no such file"):
        JsonlIndex(tmp_path / "absent.jsonl")


def test_a_file_that_grew_is_not_read_with_old_offsets(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"a": 1}\n')
    index = JsonlIndex(path)
    path.write_bytes(b'{"b": 10}\n{"a": 1}\n')
    with pytest.raises(DataError, match="has changed"):
        index.row(0)


def test_an_index_crosses_a_process_border(tmp_path: Path) -> None:
    index = JsonlIndex(written(tmp_path, b'{"a": 1}\n{"a": 2}\n'))
    assert pickle.loads(pickle.dumps(index)).rows([1, 0]) == [{"a": 2}, {"a": 1}]


@given(rows=st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()), min_size=1, max_size=8))
def test_any_rows_come_back_in_any_order(tmp_path_factory: pytest.TempPathFactory, rows: list[dict]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes("\n".join(json.dumps(row) for row in rows).encode())
    index = JsonlIndex(path)
    backwards = range(len(rows))[::-1]
    assert index.rows(backwards) == [rows[i] for i in backwards]
