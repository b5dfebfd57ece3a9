"""Digests of a finished run's files: `sums.json` in its folder, checked by reading commands.

    {"final/model.safetensors": {"bytes": 1234, "sha256": …}, "metrics.jsonl": …}

Digests of the logs cover what the run wrote, line by line, so that lines from other programs are
detected.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.core.errors import InputError
from lockstep.system.disk import rename_path, sync_path
from lockstep.system.records import read_record
from lockstep.system.whole_files import write_whole

SUMS = "sums.json"
FINAL = "final"
FileDigest = dict[str, Any]
"""The `bytes` and the `sha256` of a file."""

_LARGE_BYTES = 1 << 24
_PART_BYTES = 1 << 20
_ASIDE = f".{FINAL}-aside"
_ALSO = ("initial", "certificate.json")


def finish_run(
    run: Path, logs: Mapping[str, FileDigest], export: Callable[[Path], object]
) -> list[str]:
    """Writes a run's model and all digests; `final/` appears only when both are complete.

    Args:
        run: Folder of the run.
        logs: Digests of its logs.
        export: Writes the model into a new folder.

    Returns:
        A sentence for each log that differs from what the run wrote.
    """
    aside = run / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    export(aside)
    sums = {f"{FINAL}/{name}": _digest_file(aside / name) for name in _list_files(aside, ".")}
    for part in _ALSO:
        for name in _list_files(run, part):
            sums[name] = _digest_file(run / name)
    sums.update(logs)
    write_whole(run / SUMS, [json.dumps(sums, indent=1).encode() + b"\n"])
    rename_path(aside, run / FINAL)
    sync_path(run)
    return list(find_altered(run, ""))


def find_altered(run: Path, part: str) -> Iterator[str]:
    """Yields a sentence for each file that differs from what the run wrote.

    Yields nothing for an unfinished run or without digests.

    Args:
        run: Folder of a run.
        part: Prefix of the files to check, such as `final/`; empty for all.
    """
    if not (run / SUMS).is_file() or not (run / FINAL).is_dir():
        return
    noted = read_record(
        run / SUMS, dict[str, dict[str, int | str]], f"restore it, or remove {run / SUMS}"
    )
    for name, sum_ in noted.items():
        if name.startswith(part) and (why := _describe_difference(run / name, sum_)):
            yield (
                f"{run / name} {why}; restore the file that the run wrote, or remove {run / SUMS} "
                "to use the current one"
            )


def find_altered_beginnings(
    run: Path, noted: Mapping[str, Mapping[str, int | str]]
) -> Iterator[str]:
    """Yields a sentence for each log whose recorded beginning differs; logs may have grown."""
    for name, sum_ in noted.items():
        path = run / name
        if not path.is_file():
            yield f"{path} is missing"
        elif _read_beginning(path, int(sum_["bytes"])) != sum_["sha256"]:
            yield f"{path} differs from what the run wrote"


def require_final(model: Path) -> None:
    """Raises InputError if a model is a run's `final/` and differs from what the run wrote."""
    if model.name == FINAL:
        require_unaltered(model.parent, f"{FINAL}/")


def require_unaltered(run: Path, part: str = "") -> None:
    """Raises InputError for the first file that differs; `part` as for `find_altered`."""
    sentence = next(find_altered(run, part), None)
    if sentence is not None:
        raise InputError(sentence)


def _describe_difference(path: Path, noted: Mapping[str, int | str]) -> str:
    """Describes how a file differs from its digest; empty if it does not."""
    if not path.is_file():
        return "is missing"
    try:
        if _digest_file(path) == noted:
            return ""
        return "differs from what the run wrote"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _list_files(run: Path, part: str) -> list[str]:
    path = run / part
    found: list[str] = []
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file() and file.suffix != ".md":
            found.append(file.relative_to(run).as_posix())
    return found


def read_sum(path: Path) -> FileDigest:
    """Digest of a file, read in one pass without holding a large file in memory."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _read_beginning(path: Path, size: int) -> str:
    """SHA-256 of a file's first bytes; a large file is not held in memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(min(size, _PART_BYTES)):
            digest.update(part)
            size -= len(part)
    return digest.hexdigest()


def _digest_file(path: Path) -> FileDigest:
    """Digest of a file; a large one's is cached by size, time and inode.

    A small file can change twice within one tick of the file system's clock.
    """
    state = path.stat()
    if state.st_size <= _LARGE_BYTES:
        return read_sum(path)
    return _read_large(path, state.st_size, state.st_mtime_ns, state.st_ino)


@cache
def _read_large(path: Path, size: int, changed_ns: int, inode: int) -> FileDigest:
    return read_sum(path)
