"""Checkpoints are whole or not there, whatever happens while they are written or afterwards."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lockstep.algorithms.job import Checkpointable
from lockstep.learners import saving
from lockstep.learners.base import NotSavedError
from lockstep.learners.boxes import FileContents
from lockstep.learners.saving import StateWriter
from lockstep.run.checkpoint.checkpoints import CheckpointError, CheckpointStore, VerifiedCheckpoint
from lockstep.run.checkpoint.saver import CheckpointSaver

Write = Callable[[Path], None]


def weights(value: float, count: int = 4) -> Write:
    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        save_file({"w": torch.full((count,), value)}, folder / "policy" / "model.safetensors")
        (folder / "learner.json").write_text(json.dumps({"updates": value}))

    return write


def save(
    checkpoints: CheckpointStore,
    step: int,
    write: Write,
    state: dict[str, Any],
    score: float | None = None,
) -> None:
    aside = checkpoints.begin_checkpoint(step)
    write(aside)
    checkpoints.seal_checkpoint(aside, step, state, score)


def nothing(text: str) -> None:
    raise AssertionError(f"nothing is wrong, but the user was told: {text}")


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2, note=nothing)


def newest(checkpoints: CheckpointStore) -> VerifiedCheckpoint:
    found = checkpoints.read_latest()
    assert found is not None
    return found


def names(checkpoints: CheckpointStore) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_saved_checkpoint_restores_step_state_and_weights(checkpoints: CheckpointStore) -> None:
    save(checkpoints, 10, weights(0.1), {"position": 320, "queue": [1, 2]})
    found = newest(checkpoints)
    assert (found.folder, found.step) == (checkpoints.folder / "step_000010", 10)
    assert found.state == {"position": 320, "queue": [1, 2]}
    assert torch.equal(
        load_file(found.folder / "policy" / "model.safetensors")["w"], torch.full((4,), 0.1)
    )


def test_latest_checkpoint_has_highest_step_and_older_ones_are_deleted(
    checkpoints: CheckpointStore,
) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        save(checkpoints, step, weights(step), {})
    assert names(checkpoints) == ["step_1000000", "step_1000001"]
    assert newest(checkpoints).step == 1_000_001


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def alter(path: Path) -> None:
    *rest, last, end = path.read_bytes()
    path.write_bytes(bytes([*rest, last ^ 1, end]))


def remove(path: Path) -> None:
    path.unlink()


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("not there")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def nest(path: Path) -> None:
    path.write_text("[" * 5_000)


@pytest.mark.parametrize("damage", [truncate, alter, remove, dangle, pipe, nest])
@pytest.mark.parametrize("file", ["policy/model.safetensors", "learner.json", "manifest.json"])
def test_damaged_checkpoint_is_named_and_previous_one_is_used(
    checkpoints: CheckpointStore, file: str, damage: Callable[[Path], None]
) -> None:
    save(checkpoints, 10, weights(1), {"position": 1})
    save(checkpoints, 20, weights(2), {"position": 2})
    damage(checkpoints.folder / "step_000020" / file)
    told: list[str] = []
    found = replace(checkpoints, note=told.append).read_latest()
    assert found is not None
    assert found.state == {"position": 1}
    assert len(told) == 1
    assert "step_000020 is skipped" in told[0]
    assert Path(file).name in told[0]
    with pytest.raises(
        CheckpointError, match=rf"no valid checkpoint of step 20 .*{re.escape(Path(file).name)}"
    ):
        checkpoints.read_step(20)


def fail(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    error: int,
    where: str,
    times: int = 1 << 30,
) -> None:
    """Makes a function of the system fail, on paths that contain a text."""
    real, left = getattr(module, name), [times]

    def failing(path: Any, *args: Any, **keywords: Any) -> Any:
        said = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        if where in said and left[0]:
            left[0] -= 1
            raise OSError(error, os.strerror(error))
        return real(path, *args, **keywords)

    monkeypatch.setattr(module, name, failing)


def test_undeletable_leftover_folder_does_not_block_saving_and_is_removed_later(
    checkpoints: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [checkpoints.folder / name for name in (".aside_step_000020", ".aside_old_step_000010")]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "held.json").write_text("{}")
    told: list[str] = []
    with monkeypatch.context() as patch:
        fail(patch, shutil, "rmtree", errno.EACCES, ".aside_")
        for step in (10, 20, 30):
            save(replace(checkpoints, note=told.append), step, weights(step), {"position": step})
    assert newest(checkpoints).state == {"position": 30}
    assert checkpoints.read_step(20).state == {"position": 20}
    assert all((folder / "held.json").exists() for folder in left)
    assert (
        f"{left[0]} cannot be removed (Permission denied); it uses disk space until it is" in told
    )
    save(checkpoints, 40, weights(40), {"position": 40})
    assert names(checkpoints) == ["step_000030", "step_000040"]


def test_transient_delete_and_rename_errors_are_retried(
    checkpoints: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, shutil, "rmtree", errno.ENOTEMPTY, "old_step_000010", times=2)
    fail(monkeypatch, Path, "rename", errno.ESTALE, "aside_step_000030", times=2)
    for step in (10, 20, 30):
        save(checkpoints, step, weights(step), {"position": step})
    assert names(checkpoints) == ["step_000020", "step_000030"]


def test_checkpoint_with_extra_file_or_wrong_step_folder_is_rejected(
    checkpoints: CheckpointStore,
) -> None:
    save(checkpoints, 10, weights(1), {})
    save(checkpoints, 20, weights(2), {})
    (checkpoints.folder / "step_000020" / "extra.json").write_text("{}")
    (checkpoints.folder / "step_000010").rename(checkpoints.folder / "step_000011")
    told: list[str] = []
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
        replace(checkpoints, note=told.append).read_latest()
    assert "extra.json" in told[0]
    assert "for step 10" in told[1]


def test_saving_after_damaged_checkpoint_removes_it_and_keeps_valid_ones(
    checkpoints: CheckpointStore,
) -> None:
    for step in (10, 20, 30):
        save(checkpoints, step, weights(step), {})
    truncate(checkpoints.folder / "step_000030" / "learner.json")
    save(checkpoints, 21, weights(21), {})
    assert names(checkpoints) == ["step_000020", "step_000021"]
    save(checkpoints, 21, weights(22), {"again": True})
    assert newest(checkpoints).state == {"again": True}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a small file system, so no disk can be filled")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@dataclass
class Filling(Checkpointable):
    """A learner, as far as saving goes."""

    weights: torch.Tensor
    writer: StateWriter = field(default_factory=StateWriter)

    def save(self, folder: Path) -> None:
        self.writer.begin_save(
            folder, {"model.safetensors": FileContents({"w": self.weights})}, {"updates": 1}
        )

    def poll_save(self, wait: bool) -> bool:
        return self.writer.poll_writing(wait)

    def load(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")["w"]


def begun_and_ended(saver: CheckpointSaver, step: int) -> None:
    with saver:
        saver.begin_checkpoint(step, {})


def test_full_disk_fails_save_with_message_and_keeps_earlier_checkpoint(small_disk: Path) -> None:
    checkpoints = CheckpointStore(small_disk / "checkpoints", keep=2)
    save(checkpoints, 10, weights(1), {})
    saver = CheckpointSaver(checkpoints, {"policy": Filling(torch.ones(100_000))})
    with pytest.raises(
        CheckpointError, match=r"cannot save the checkpoint of step 20 .*the newest .* step_000010"
    ):
        begun_and_ended(saver, 20)
    assert names(checkpoints) == ["step_000010"]
    assert newest(checkpoints).step == 10
    save(checkpoints, 20, weights(2), {})
    assert newest(checkpoints).step == 20


@pytest.mark.parametrize("name", ["weights.pt", "manifest.json"])
def test_checkpoint_rejects_other_file_types_and_reserved_names(
    checkpoints: CheckpointStore, name: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        save(checkpoints, 10, lambda folder: torch.save({}, folder / name), {})
    assert names(checkpoints) == []


def test_best_scored_checkpoints_are_kept_with_the_newest(checkpoints: CheckpointStore) -> None:
    best = CheckpointStore(checkpoints.folder, keep=1, best=2)
    for step, score in ((1, 0.5), (2, 0.9), (3, None), (4, 0.9), (5, 0.1), (6, 0.2)):
        save(best, step, weights(step), {}, score)
    assert names(best) == ["step_000002", "step_000004", "step_000006"]
    assert [step for _, step, _ in best.rank_by_score()] == [6, 4, 2]


def test_background_checkpoint_holds_weights_from_when_save_began(
    checkpoints: CheckpointStore,
) -> None:
    learner = Filling(torch.zeros(1 << 22))
    with CheckpointSaver(checkpoints, {"policy": learner}) as saver:
        for step in (1, 2):
            saver.begin_checkpoint(step, {})
            learner.weights += 1.0
    saved = [
        load_file(checkpoints.read_step(step).folder / "policy/model.safetensors")["w"]
        for step in (1, 2)
    ]
    assert [(w.min().item(), w.max().item()) for w in saved] == [(0.0, 0.0), (1.0, 1.0)]


def test_checkpoint_save_completes_when_a_later_step_fails(checkpoints: CheckpointStore) -> None:
    def fails_after_saving() -> None:
        with CheckpointSaver(checkpoints, {"policy": Filling(torch.ones(4))}) as saver:
            saver.begin_checkpoint(10, {})
            raise ValueError("a step failed")

    with pytest.raises(ValueError, match="a step failed"):
        fails_after_saving()
    assert newest(checkpoints).step == 10


def test_checkpoint_writer_thread_error_is_raised_on_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise MemoryError("no memory to write with")

    monkeypatch.setattr(saving, "save_file", fails)
    writer = StateWriter()
    writer.begin_save(tmp_path, {"model.safetensors": FileContents({"w": torch.ones(2)})}, {})
    with pytest.raises(NotSavedError, match="no memory to write with"):
        writer.poll_writing(wait=True)
