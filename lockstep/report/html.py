"""`lockstep report`: runs as one HTML page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from lockstep.core.errors import InputError
from lockstep.report.document import write_block, write_document
from lockstep.report.log import to_json_value
from lockstep.report.metric_sentences import describe_metric
from lockstep.report.overview import read_overview
from lockstep.report.samples import pack_samples
from lockstep.report.sweeps import describe_sweep, is_sweep, read_sweep
from lockstep.system.disk import name_temporary_copy
from lockstep.system.records import is_file, refuse_other
from lockstep.system.whole_files import open_aside


def find_runs(folders: Sequence[Path]) -> Sequence[Path]:
    """The runs that a page shows: the given ones, or the started runs of one sweep.

    Raises:
        InputError: A run is given twice, a sweep is not given alone, or none of its runs started.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("duplicate run; give each run once")
    sweeps = [folder for folder in folders if is_sweep(folder)]
    if not sweeps:
        return folders
    if len(folders) > 1:
        raise InputError(f"{sweeps[0]} is a sweep, which has its own page; give it alone")
    started = [run.folder for run in read_sweep(sweeps[0]) if is_file(run.folder / "recipe.yaml")]
    if not started:
        raise InputError(f"no run of {sweeps[0]} has started; start it with lockstep sweep")
    return started


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Writes a page about runs, or about a sweep with a band over the seeds of each group.

    A run may be in progress, and needs only its recipe.

    Raises:
        ValueError: See `find_runs`; or a folder holds no run, or one of its logs is unreadable.
    """
    refuse_other(out)
    with open_aside(out, name_temporary_copy(out)) as file:  # readers never see a partial file
        _write_page(folders, file)


def write_live_report(folders: Sequence[Path], file: BinaryIO) -> None:
    """Writes the page of runs for `lockstep watch`: it reloads when the server has a newer one.

    Raises:
        ValueError: See `write_report`.
    """
    _write_page(folders, file, live=True)


def _write_page(folders: Sequence[Path], file: BinaryIO, live: bool = False) -> None:
    runs = find_runs(folders)
    report = describe_runs(runs)
    if is_sweep(folders[0]):
        noted = read_sweep(folders[0])
        report["sweep"] = describe_sweep([run for run in noted if run.folder in runs])
    blocks = {"report": json.dumps(to_json_value(report), allow_nan=False).encode()}
    with TemporaryFile() as aside:
        for run, folder in enumerate(runs):
            blocks[f"samples-{run}"] = pack_samples(folder, partial(_write_tokens, aside, run))
        aside.seek(0)
        write_document(file, blocks, live)
        shutil.copyfileobj(aside, file)


def describe_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Everything that the page shows except samples.

    This is `runs` (see `overview`), `sentences` on their metrics, and the time of reading. A run
    has its folder's name, or the path if two folders have the same name.

    Raises:
        ValueError: A folder holds no run, or one of its logs is unreadable.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = list(map(str, folders))
    runs: list[dict[str, Any]] = []
    sentences: dict[str, str] = {}
    for folder, name in zip(folders, names, strict=True):
        run = read_overview(folder) | {"name": name}
        runs.append(run)
        for metric in run["metrics"]:
            sentence = describe_metric(metric)
            if sentence:
                sentences[metric] = sentence
    return {"made": datetime.now().isoformat(" ", "minutes"), "runs": runs, "sentences": sentences}


def _write_tokens(file: BinaryIO, run: int, number: int, block: bytes) -> None:
    write_block(file, f"tokens-{run}-{number}", block)
