"""Logs: whole lines, no step twice, numbers that come back as they were."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import RunError
from lockstep.report.log import encode_line, read_metrics
from lockstep.run.folder.logs import RunLogs, append_lines


def steps(folder: Path, name: str) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / name).read_text().splitlines()]


def run(tracker: RunLogs, start: int, stop: int) -> None:
    for step in range(start, stop):
        tracker.add_metrics(step, {"train/reward": step / 10})
        tracker.add_timings(step, {"generate": 0.5})
        tracker.add_samples(
            step, [{"prompt": "a\n\u2028b", "parts": {"x": math.nan}}, {"prompt": "c"}]
        )


@given(st.floats())
def test_every_float_is_logged_as_one_strict_json_line(value: float) -> None:
    line = encode_line(1, {"x": value})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(line, parse_constant=refuse)["x"]
    if math.isfinite(value):
        assert found.hex() == value.hex()
    else:
        assert found == {"nan": None, "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, -0.0, math.inf, -math.inf, math.nan])
def test_logged_metrics_read_back_bit_identical(tmp_path: Path, value: float) -> None:
    RunLogs(tmp_path).add_metrics(0, {"x": value})
    assert read_metrics(tmp_path)[0]["x"].hex() == value.hex()


def test_rewound_logs_contain_each_step_once(tmp_path: Path) -> None:
    tracker = RunLogs(tmp_path)
    run(tracker, 0, 8)
    before = (tmp_path / "samples.jsonl").read_text()
    tracker.rewind_to(4)
    assert steps(tmp_path, "metrics.jsonl") == [0, 1, 2, 3, 4]
    run(tracker, 5, 8)
    assert steps(tmp_path, "metrics.jsonl") == steps(tmp_path, "timings.jsonl") == list(range(8))
    assert (tmp_path / "samples.jsonl").read_text() == before


def test_torn_log_line_is_not_read_and_is_removed_by_rewind(tmp_path: Path) -> None:
    tracker = RunLogs(tmp_path)
    run(tracker, 0, 3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/rew')
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2]
    tracker.rewind_to(5)
    run(tracker, 3, 4)
    assert steps(tmp_path, "metrics.jsonl") == [0, 1, 2, 3]


def test_failed_log_append_raises_and_leaves_no_partial_line(tmp_path: Path) -> None:
    path, limits = tmp_path / "metrics.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    append_lines(path, b"whole\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RunError, match="free space"):
            append_lines(path, b"x" * 2000 + b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"whole\n"
