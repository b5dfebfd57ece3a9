"""Checkpoints are whole or not there, whatever happens while they are written or afterwards."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lockstep.runtime.checkpoint import Checkpoint, CheckpointError, Checkpoints

Write = Callable[[Path], None]


def weights(value: float, count: int = 4) -> Write:
    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        save_file({"w": torch.full((count,), value)}, folder / "policy" / "model.safetensors")
        (folder / "learner.json").write_text(json.dumps({"updates": value}))

    return write


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def newest(checkpoints: Checkpoints) -> Checkpoint:
    found = checkpoints.latest()
    assert found is not None
    return found


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_no_checkpoint_yet(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None


def test_what_is_saved_comes_back(checkpoints: Checkpoints) -> None:
    checkpoints.save(10, weights(0.1), {"position": 320, "queue": [1, 2]})
    found = newest(checkpoints)
    assert (found.folder, found.step) == (checkpoints.folder / "step_000010", 10)
    assert found.state == {"position": 320, "queue": [1, 2]}
    assert torch.equal(load_file(found.folder / "policy" / "model.safetensors")["w"], torch.full((4,), 0.1))


def test_the_newest_by_step_is_found_and_only_so_many_are_kept(checkpoints: Checkpoints) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        checkpoints.save(step, weights(step), {})
    assert names(checkpoints) == ["step_1000000", "step_1000001"]
    assert newest(checkpoints).step == 1_000_001


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def alter(path: Path) -> None:
    *rest, last, end = path.read_bytes()
    path.write_bytes(bytes([*rest, last ^ 1, end]))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, alter, remove])
@pytest.mark.parametrize("file", ["policy/model.safetensors", "learner.json", "state.json", "manifest.json"])
def test_a_damaged_one_is_named_and_the_one_before_it_is_used(
    checkpoints: Checkpoints, file: str, damage: Callable[[Path], None]
) -> None:
    checkpoints.save(10, weights(1), {"position": 1})
    checkpoints.save(20, weights(2), {"position": 2})
    damage(checkpoints.folder / "step_000020" / file)
    with pytest.warns(UserWarning, match=re.escape(Path(file).name)) as caught:
        assert newest(checkpoints).state == {"position": 1}
    assert "step_000020 is not used" in str(caught[0].message)


def test_an_added_file_and_another_steps_folder_are_refused(checkpoints: Checkpoints) -> None:
    checkpoints.save(10, weights(1), {})
    checkpoints.save(20, weights(2), {})
    (checkpoints.folder / "step_000020" / "extra.json").write_text("{}")
    (checkpoints.folder / "step_000010").rename(checkpoints.folder / "step_000011")
    with pytest.warns(UserWarning, match="is not used") as caught:
        assert checkpoints.latest() is None
    assert "extra.json" in str(caught[0].message)
    assert "that of step 10" in str(caught[1].message)


def test_going_on_before_a_damaged_one_replaces_it_and_keeps_the_good(checkpoints: Checkpoints) -> None:
    for step in (10, 20, 30):
        checkpoints.save(step, weights(step), {})
    truncate(checkpoints.folder / "step_000030" / "state.json")
    checkpoints.save(21, weights(21), {})
    assert names(checkpoints) == ["step_000020", "step_000021"]
    checkpoints.save(21, weights(22), {"again": True})
    assert newest(checkpoints).state == {"again": True}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_leaves_nothing_and_the_others_whole(checkpoints: Checkpoints, error: BaseException) -> None:
    checkpoints.save(10, weights(1), {})

    def write(folder: Path) -> None:
        weights(2)(folder)
        raise error

    expected = CheckpointError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        checkpoints.save(20, write, {})
    assert names(checkpoints) == ["step_000010"]
    assert newest(checkpoints).step == 10
    if isinstance(error, OSError):
        for part in ("step 20", str(checkpoints.folder), "No space left on device", "step_000010"):
            assert part in str(caught.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user cannot mount a small file system, so no disk can be filled")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_earlier_checkpoints_stay_whole(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk / "checkpoints", keep=2)
    checkpoints.save(10, weights(1), {})
    with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 20"):
        checkpoints.save(20, weights(2, count=100_000), {})
    assert names(checkpoints) == ["step_000010"]
    assert newest(checkpoints).step == 10
    checkpoints.save(20, weights(2), {})
    assert newest(checkpoints).step == 20


def test_what_a_killed_process_left_aside_is_no_checkpoint_and_goes_with_the_next_save(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.save(10, weights(1), {})
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, sys\nfrom pathlib import Path\nfrom lockstep.runtime.checkpoint import Checkpoints\n"
        "def write(folder):\n    (folder / 'half.json').write_text('{')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Checkpoints(Path(sys.argv[1]), 2).save(20, write, {})\n"
    )
    killed = subprocess.run([sys.executable, str(script), str(checkpoints.folder)])
    assert killed.returncode == -signal.SIGKILL
    assert len(names(checkpoints)) == 2
    assert newest(checkpoints).step == 10
    checkpoints.save(30, weights(3), {})
    assert names(checkpoints) == ["step_000010", "step_000030"]


@pytest.mark.parametrize("name", ["weights.pt", "state.json", "manifest.json"])
def test_only_safetensors_and_json_under_names_of_their_own(checkpoints: Checkpoints, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        checkpoints.save(10, lambda folder: torch.save({}, folder / name), {})
    assert names(checkpoints) == []
