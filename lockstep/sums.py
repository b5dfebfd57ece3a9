"""Digests of what a finished run left behind: `sums.json` in its folder, checked by commands that read the files.

    {"final/model.safetensors": {"bytes": 1234, "sha256": …}, "metrics.jsonl": …}

Those of the logs are of what the run wrote, line by line, so that a line which something else wrote there shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.errors import InputError
from lockstep.records import read_record
from lockstep.whole_files import write_whole

SUMS = "sums.json"
FINAL = "final"
Sum = dict[str, Any]
"""The `bytes` and the `sha256` of a file."""

_LARGE_BYTES = 1 << 24
_ALSO = ("initial", "certificate.json")


def write_sums(run: Path, logs: Mapping[str, Sum]) -> list[str]:
    """Notes the digests of a run's model as it is now, and those of its logs.

    Returns:
        A sentence for each log that differs from what the run wrote.
    """
    names = [name for part in (FINAL, *_ALSO) for name in _list_files(run, part)]
    sums = {name: _sum(run / name) for name in names} | dict(logs)
    write_whole(run / SUMS, [json.dumps(sums, indent=1).encode() + b"\n"])
    return list(find_altered(run, ""))


def find_altered(run: Path, part: str) -> Iterator[str]:
    """Yields a sentence for each file that differs from what the run wrote; none if the run noted no digests.

    Args:
        run: Folder of a run.
        part: Only files whose names begin so, such as `final/`; all by the empty text.
    """
    if not (run / SUMS).is_file():
        return
    noted = read_record(run / SUMS, dict[str, dict[str, int | str]], f"restore it, or remove {run / SUMS}")
    for name, sum_ in noted.items():
        if name.startswith(part) and (why := _compare(run / name, sum_)):
            yield (
                f"{run / name} {why}; put back what the run wrote, or remove {run / SUMS} to go on with what is there"
            )


def require_final(model: Path) -> None:
    """Raises InputError if a model is the `final/` of a run, and no longer as the run wrote it."""
    if model.name == FINAL:
        require_unaltered(model.parent, f"{FINAL}/")


def require_unaltered(run: Path, part: str = "") -> None:
    """Raises InputError for the first file that differs from what the run wrote; `part` as for `find_altered`."""
    sentence = next(find_altered(run, part), None)
    if sentence is not None:
        raise InputError(sentence)


def _compare(path: Path, noted: Mapping[str, int | str]) -> str:
    """Describes how a file differs from what was noted; empty if it does not."""
    try:
        if not path.is_file():
            return "is missing"
        if path.stat().st_size != noted.get("bytes"):
            return f"has {path.stat().st_size} bytes, but {noted.get('bytes')} were written"
        return "" if _sum(path)["sha256"] == noted.get("sha256") else "differs from what the run wrote"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _list_files(run: Path, part: str) -> list[str]:
    path = run / part
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file.relative_to(run).as_posix() for file in files if file.is_file() and file.suffix != ".md"]


def read_sum(path: Path) -> Sum:
    """Reads a file once; a large one is not held in memory."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _sum(path: Path) -> Sum:
    """The sum of a file; of a large one, as it was when this process last saw that size, time and inode.

    A small one can change twice in one tick of the file system's clock.
    """
    state = path.stat()
    if state.st_size <= _LARGE_BYTES:
        return read_sum(path)
    return _read_large(path, state.st_size, state.st_mtime_ns, state.st_ino)


@cache
def _read_large(path: Path, size: int, changed_ns: int, inode: int) -> Sum:
    return read_sum(path)
