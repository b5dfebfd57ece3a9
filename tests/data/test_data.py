"""Runs on data files of the user's: several, mixed, packed, with rows that cannot be used; stopped
and continued.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from killing import copy_unfinished
from pyarrow import parquet
from row_files import read_trained

Run = Callable[..., list[dict[str, Any]]]

MIXTURE = (
    "data.train=[easy.jsonl, hard.jsonl.gz, more.parquet]", "data.weights=[1, 2, 1]", "data.validation=[held.jsonl]",
    "data.bad_rows=skip", "data.overlong_prompts=skip",
    "data.max_prompt_tokens=8", "run.num_logged_samples=16",
)  # fmt: skip


def rows(name: str, count: int) -> list[dict[str, Any]]:
    return [{"question": f"{name} {n}", "answer": str(n), "level": n} for n in range(count)]


@pytest.fixture
def files(in_tmp: Path) -> None:
    long = {"question": "easy " * 20, "answer": "1", "level": 1}
    bad = [{"answer": "1", "level": 1}, {"question": "easy 1", "level": 1}]
    easy = "".join(json.dumps(row) + "\n" for row in [*rows("easy", 6), long, *bad])
    Path("easy.jsonl").write_text(easy + "torn\n")
    Path("hard.jsonl.gz").write_bytes(
        gzip.compress("\n".join(map(json.dumps, rows("hard", 5))).encode())
    )
    parquet.write_table(pyarrow.Table.from_pylist(rows("more", 7)), "more.parquet")
    Path("held.jsonl").write_text(
        "\n".join([json.dumps(row) for row in rows("easy", 3)] + ["torn"])
    )


def drawn(folder: str) -> list[str]:
    """The ids of the prompts of a run that logs all samples; each is answered twice."""
    return [row["id"] for row in read_trained(Path(folder, "samples.jsonl"))][::2]


@pytest.mark.usefixtures("files")
def test_data_mixture_reports_skipped_rows_and_resumes_with_same_prompts_and_metrics(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*MIXTURE, "run.max_steps=4", "run.save_every=2")
    whole = run("run.folder=whole", *options)
    said = capsys.readouterr().err
    assert "18 prompts (3 bad rows, 1 over-long skipped)" in said
    assert "easy.jsonl, line 8: has no field 'question'" in said
    assert "held.jsonl, line 4: is invalid JSON" in said
    assert Counter(name.split(":")[0] for name in drawn("whole")) == {
        "easy.jsonl": 8, "hard.jsonl.gz": 16, "more.parquet": 8,
    }  # fmt: skip
    copy_unfinished(4)
    assert run("run.folder=stopped", *options) == whole
    assert drawn("stopped") == drawn("whole")
