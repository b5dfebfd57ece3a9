"""Digests of a finished run: each file that is altered afterwards, or by something else meanwhile,
is named.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.errors import InputError
from lockstep.report.log import METRICS
from lockstep.run.folder.logs import RunLogs
from lockstep.system.sums import (
    SUMS,
    FileDigest,
    find_altered,
    find_altered_beginnings,
    finish_run,
    require_unaltered,
)

FILES = (
    "final/model.safetensors",
    "final/config.json",
    "initial/tokenizer.json",
    "certificate.json",
    "metrics.jsonl",
)


def export(folder: Path) -> None:
    folder.mkdir()
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_bytes(name.encode() * 100)


def end(run: Path, logs: RunLogs) -> list[str]:
    shutil.rmtree(run / "final", ignore_errors=True)
    return finish_run(run, logs.list_digests(), export)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in FILES[2:-1]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 100)
    (tmp_path / "recipe.yaml").touch()
    logs = RunLogs(tmp_path)
    logs.add_metrics(1, {"train/reward": 0.5})
    logs.add_samples(1, [{"response": "one"}])
    assert end(tmp_path, logs) == []
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_in_finished_run_is_reported_with_file_name(run: Path, name: str) -> None:
    require_unaltered(run)
    content = bytearray((run / name).read_bytes())
    content[7] ^= 4
    (run / name).write_bytes(content)
    with pytest.raises(
        InputError, match=f"{name} differs from what the run wrote; restore the file"
    ):
        require_unaltered(run)
    if name.startswith("final/"):
        with pytest.raises(InputError, match=f"{name} differs"):
            find_weights_folder(run)
        with pytest.raises(InputError, match=f"{name} differs"):
            find_weights_folder(run / "final")
    else:
        assert find_weights_folder(run) == run / "final"


@pytest.mark.parametrize("name", FILES)
def test_missing_or_extended_run_file_is_reported(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.write(b"more")
    assert " differs from what the run wrote; restore the file" in next(find_altered(run, ""))
    (run / name).unlink()
    assert "is missing" in next(find_altered(run, ""))


def test_interrupted_finish_leaves_no_final_model(run: Path) -> None:
    shutil.rmtree(run / "final")
    (run / SUMS).unlink()

    def die(folder: Path) -> None:
        export(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish_run(run, {}, die)
    assert not (run / "final").exists()
    assert finish_run(run, {}, export) == []
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("name", [METRICS, "samples.jsonl"])
def test_log_prefix_altered_since_checkpoint_is_reported(name: str, tmp_path: Path) -> None:
    logs, noted = RunLogs(tmp_path), list[dict[str, FileDigest]]()
    for step in (1, 2):
        logs.add_metrics(step, {"train/reward": 0.5})
        logs.add_samples(step, [{"response": "one"}])
        noted.append(logs.list_digests())
    content = (tmp_path / name).read_bytes()
    assert list(find_altered_beginnings(tmp_path, noted[0])) == []
    end = len(content) // 2
    for altered in (
        b"x" + content[1:],
        content[: end - 1] + b"\0" + content[end:],
        content[: end - 1],
        b"",
    ):
        (tmp_path / name).write_bytes(altered)
        assert list(find_altered_beginnings(tmp_path, noted[0])) == [
            f"{tmp_path / name} differs from what the run wrote"
        ]
    (tmp_path / name).write_bytes(content[:-2] + b"9}")  # later than what was noted
    assert list(find_altered_beginnings(tmp_path, noted[0])) == []
    (tmp_path / name).unlink()
    assert list(find_altered_beginnings(tmp_path, noted[0])) == [f"{tmp_path / name} is missing"]
