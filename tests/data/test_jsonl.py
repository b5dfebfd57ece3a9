"""The index of JSONL rows: every row as written, every fault with its line, and nothing found out
twice.
"""

import gzip
import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.jsonl import DataError, JsonlIndex
from lockstep.data.templates import fill_template


def written(folder: Path, content: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return path


def all_rows(index: JsonlIndex) -> list[dict]:
    return index.read_rows(range(len(index)))


def test_jsonl_strings_are_not_retyped_by_types_in_other_rows(tmp_path: Path) -> None:
    # One row with another type makes some loaders retype the strings of all others.
    strings = [
        "007",
        "4",
        "1e5",
        "3.10",
        "true",
        "null",
        "[1, 2]",
        " 5 ",
        "NaN",
        "a\u2028b",
        "x\rx",
        "🦆",
    ]
    lines = [json.dumps({"answer": s}, ensure_ascii=False) for s in strings] + [
        '{"answer": {"nested": 1}}'
    ]
    index = JsonlIndex(written(tmp_path, "\n".join(lines).encode()))
    assert [row["answer"] for row in all_rows(index)] == [*strings, {"nested": 1}]


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
def test_line_endings_byte_order_mark_and_blank_lines_are_ignored_in_jsonl(
    tmp_path: Path, content: bytes
) -> None:
    index = JsonlIndex(written(tmp_path, content))
    assert all_rows(index) == [{"a": 1}, {"a": 2}]
    assert index.skipped.count == 0


@pytest.mark.parametrize(
    "number",
    [
        "3.10",
        "1E5",
        "-0",
        "-0.0",
        "0.1000000000000000055511151231257827",
        "9007199254740993",
        str(2**70),
        "7",
    ],
)
def test_template_renders_numbers_exactly_as_written_in_jsonl(tmp_path: Path, number: str) -> None:
    line = f'{{"n": {number}, "nested": [{{"n": {number}}}]}}'.encode()
    row = pickle.loads(pickle.dumps(JsonlIndex(written(tmp_path, line)).read_rows([0])[0]))
    assert row["n"] == json.loads(number)
    assert fill_template("{n} {nested}", row, "") == f'{number} [{{"n": {number}}}]'


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (b'{"a": ', "is invalid JSON"),
        (b'{"a": 1} {"a": 2}', "Extra data at character 10"),
        (b"[1, 2]", "is a JSON array, not an object"),
        (b"null", "is a JSON null"),
        (b'{"a": "caf\xe9"}', r"byte 11 \(0xe9\) is invalid UTF-8"),
        (b'{"a": "\\ud83d"}', "half a surrogate pair"),
        (b'{"a": ' + b"[" * 200_000, "is invalid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is invalid JSON"),
        (b'{"a": [{"b": -Infinity}]}', "holds -Infinity"),
        (b'{"a": 1e999}', "holds 1e999, which is not a finite number"),
        (b'{"b": [{"a": 1, "a" : 1}]}', 'has the key "a" twice'),
    ],
)
def test_bad_jsonl_line_is_rejected_by_line_number_or_skipped_and_counted(
    tmp_path: Path, bad: bytes, what: str
) -> None:
    path = written(tmp_path, b'{"a": 1}\n' + bad + b'\n{"a": 2}\n')
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2: .*{what}.*data\.bad_rows=skip"):
        JsonlIndex(path)
    for _ in ("first", "from the cache"):
        index = JsonlIndex(path, bad_rows="skip")
        assert all_rows(index) == [{"a": 1}, {"a": 2}]
        assert index.skipped.count == 1
        assert index.skipped.first[0].startswith(f"{path}, line 2: ")
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2: .*{what}.*data\.bad_rows=skip"):
        JsonlIndex(path)


@pytest.mark.parametrize("content", [b'{"b": 10}\n{"a": 1}\n', b'{"a": 2}\n'])
def test_a_file_that_changed_is_not_read_with_old_offsets(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, b'{"a": 1}\n')
    index = JsonlIndex(path)
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))  # two writes within one tick of the clock look alike
    with pytest.raises(DataError, match="changed while in use"):
        index.read_rows([0])
    again = JsonlIndex(path)
    assert again.read_rows(range(len(again))) == [json.loads(line) for line in content.splitlines()]
    assert again.digest != index.digest


def refused(*_: Any) -> Any:
    raise AssertionError("the file was read again")


def test_second_opening_of_jsonl_uses_cached_index_without_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b'{"a": 1}\nbad\n{"a": 2}\n'
    first = JsonlIndex(written(tmp_path, content), "skip")
    monkeypatch.setattr(JsonlIndex, "_scan_rows", refused)
    second = JsonlIndex(first.path, "skip")
    assert all_rows(second) == all_rows(first)
    assert second.skipped == first.skipped
    assert second.digest == first.digest == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("left", [0, 7, 30])
def test_truncated_jsonl_index_cache_entry_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path, b'{"a": 1}\n{"a": 2}\n')
    JsonlIndex(path)
    (entry,) = (tmp_path / "cache/index").iterdir()
    os.truncate(entry, left)
    assert all_rows(JsonlIndex(path)) == [{"a": 1}, {"a": 2}]


def test_gzipped_jsonl_is_read_with_rows_lines_and_digest_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    content = b'{"a": 1}\n{"a": 2}\n'
    path = tmp_path / "rows.jsonl.gz"
    # as `cat a.gz b.gz` makes it
    path.write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]))
    index = JsonlIndex(path)
    assert all_rows(index) == [{"a": 1}, {"a": 2}]
    assert (index.row_id(1), index.name_row(1)) == ("rows.jsonl.gz:2", f"{path}, line 2")
    assert index.digest == hashlib.sha256(content).hexdigest()
    assert JsonlIndex(path).read_rows([1]) == [{"a": 2}]


PEAK = """
import sys
from pathlib import Path
from lockstep.data.jsonl import JsonlIndex

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

before = kib("VmRSS")
index = JsonlIndex(sys.argv[1])
index.read_rows(range(0, len(index), len(index) // 100))
print(kib("VmHWM") - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the system does not tell a process's peak memory",
)
def test_jsonl_index_memory_stays_below_32_mb_for_125_mb_file(tmp_path: Path) -> None:
    line = b'{"text": "' + b"x" * 300 + b'"}\n'
    path = written(tmp_path, line * 400_000)  # 125 MB
    grown = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert int(grown) < 32_000


@given(
    rows=st.lists(
        st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_jsonl_rows_can_be_read_in_reverse_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes("\n".join(json.dumps(row) for row in rows).encode())
    index = JsonlIndex(path)
    backwards = range(len(rows))[::-1]
    assert index.read_rows(backwards) == [rows[i] for i in backwards]
