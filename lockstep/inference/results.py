"""The results folder of an inference command, named by a hash of all its inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config.loading import LoadedRecipe
from lockstep.data.files import FileGroup, open_rows
from lockstep.run.folder.files import require_writable, write_once
from lockstep.run.folder.identity import ChangedError, RunIdentity, collect_inputs, list_differences
from lockstep.run.folder.opening import open_run
from lockstep.run.stop import StoppedRun, StopRequests
from lockstep.system.records import is_file, read_record

_INPUTS = "inputs.json"


@dataclass(frozen=True)
class ResultsFolder:
    """A folder for the results of a recipe.

    Attributes:
        loaded: The recipe.
        folder: Folder of the results.
        inputs: Everything that the results depend on.
    """

    loaded: LoadedRecipe
    folder: Path
    inputs: RunIdentity

    @contextmanager
    def open_locked(self) -> Iterator[Callable[[], None]]:
        """Creates and locks the folder.

        The block receives a function to call once work has started; if it fails before, the created
        folder is removed.

        Raises:
            ValueError: If the folder cannot be created or is locked by another process.
        """
        require_writable(self.folder)
        with open_run(self.loaded, self.folder) as started:
            write_once(self.folder / _INPUTS, json.dumps(self.inputs, indent=1) + "\n")
            yield started


def choose_results_folder(
    loaded: LoadedRecipe, model: str | None, rows: Mapping[str, FileGroup], root: str, others: str
) -> ResultsFolder:
    """Chooses the results folder: `run.folder`, or a folder in `root` named by a hash.

    Args:
        loaded: The recipe.
        model: Folder of the model. None: the model is on a server, and its name is in the recipe.
        rows: Files of rows, by name.
        root: Parent folder of such results.
        others: Name of results of different options, weights or rows, for messages.

    Raises:
        ChangedError: If the folder holds results of different inputs.
    """
    digests = {name: open_rows(files, "skip").digest[:16] for name, files in rows.items()}
    model_folder = None if model is None else Path(model)
    now = collect_inputs(loaded, digests, model_folder)
    key = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()[:10]
    named = loaded.recipe.folder
    folder = Path(root) / f"{loaded.name}-{key}" if named is None else Path(named)
    noted = folder / _INPUTS
    changed: list[str] = []
    if is_file(noted):
        cure = "choose a different folder with --out, or remove this one"
        changed = list_differences(read_record(noted, dict[str, Any], cure), now)
    if changed:
        raise ChangedError(
            f"{folder} holds {others}:\n  "
            + "\n  ".join(changed)
            + "\nchoose a different folder with --out, or remove it"
        )
    return ResultsFolder(loaded, folder, now)


def cut_to_blocks(log: Path, sizes: Iterable[int]) -> int:
    """Truncates a log after its last complete block, given the line count of each block.

    Returns:
        The number of complete blocks.
    """
    if not is_file(log):
        return 0
    complete = 0
    with log.open("r+b") as file:
        for size in sizes:
            start = file.tell()
            lines = [file.readline() for _ in range(size)]
            if not lines[-1].endswith(b"\n"):
                file.seek(start)
                break
            complete += 1
        file.truncate()
    return complete


def find_missing(log: Path, count: int, size: int) -> list[range]:
    """Truncates a log after its last complete block; returns the missing blocks."""
    blocks = [range(count)[start : start + size] for start in range(0, count, size)]
    return blocks[cut_to_blocks(log, map(len, blocks)) :]


def raise_if_stopped(stop: StopRequests, done: str) -> None:
    """Raises Stopped if a stop was requested; `done` describes the finished work."""
    why = stop.check_after_step()
    if why is not None:
        reason, code = why
        raise StoppedRun(f"stopped after {done}: {reason}; rerun the command to resume", code)
