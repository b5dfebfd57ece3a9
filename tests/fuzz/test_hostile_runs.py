"""Hostile run folders: what was damaged, or is of another program, is refused by name or passed
over and told.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_cases import CASES, RUN, Case
from strategies import corrupted, json_bytes, spoiled
from tiers import full

from lockstep.core.errors import LockstepError
from lockstep.report.certificate import CERTIFICATE
from lockstep.report.html import describe_runs
from lockstep.report.log import ENVIRONMENT, METRICS, SAMPLES, TIMINGS
from lockstep.report.samples import pack_samples
from lockstep.report.summary import summarize_run
from lockstep.run.folder.logs import RunLogs

_EARLY = (
    "metrics: a pipe, resume",
    "environment: torn, resume",
    "checkpoints: a state without position",
)


def one_of_each() -> list[Any]:
    """Reports and results for every day; of those that start a run, a few."""
    return [
        pytest.param(name, id=name) if case.command != RUN or name in _EARLY else full(name)
        for name, case in CASES.items()
    ]


@pytest.mark.parametrize("name", one_of_each())
def test_damaged_run_folder_exits_with_stated_code_and_message(
    name: str, with_a_run: Path, refuses: Any
) -> None:
    case: Case = CASES[name]
    case.spoil(with_a_run)
    refuses(with_a_run, case.command, case.code, case.says)


LOGS = (METRICS, SAMPLES, TIMINGS)
RECORDS = (CERTIFICATE, ENVIRONMENT)


@st.composite
def damages(draw: st.DrawFn, contents: dict[str, bytes]) -> tuple[str, bytes]:
    """A file of a run, and what stands in it instead."""
    name = draw(st.sampled_from([*LOGS, *RECORDS]))
    content = contents[name]
    if draw(st.booleans()):
        return name, draw(corrupted(st.just(content)))
    if name in RECORDS:
        return name, json_bytes(draw(spoiled(json.loads(content))))
    lines = content.splitlines(keepends=True)
    place = draw(st.integers(0, len(lines) - 1))
    lines[place] = json_bytes(draw(spoiled(json.loads(lines[place])))) + b"\n"
    return name, b"".join(lines)


@contextmanager
def in_place(run: Path, name: str, content: bytes) -> Iterator[None]:
    before = {log: (run / log).read_bytes() for log in (*LOGS, *RECORDS)}
    (run / name).write_bytes(content)
    try:
        yield
    finally:
        for log, kept in before.items():
            (run / log).write_bytes(kept)


def check_damage(run: Path, data: st.DataObject) -> None:
    """A report, a summary and the start of a resumed run read a damaged file, or refuse it in one
    sentence.
    """
    name, content = data.draw(
        damages({name: (run / name).read_bytes() for name in (*LOGS, *RECORDS)})
    )
    with in_place(run, name, content):
        said = [
            sentence_of(lambda: json.dumps(describe_runs([run]))),
            sentence_of(lambda: pack_samples(run, lambda number, block: None)),
            sentence_of(lambda: summarize_run(run)),
            sentence_of(lambda: RunLogs(run).rewind_to(2)),
        ]
    assert all(name in sentence and "\n" not in sentence for sentence in said if sentence)


def sentence_of(read: Callable[[], object]) -> str:
    """What a reader says of a folder that it refuses; empty where it reads it."""
    try:
        read()
    except LockstepError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def finished(run_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(run_once / "run", tmp_path_factory.mktemp("finished") / "run"))


@settings(max_examples=40)
@given(st.data())
def test_fuzzed_run_file_is_read_or_rejected_by_name(finished: Path, data: st.DataObject) -> None:
    check_damage(finished, data)


@pytest.mark.proof
@settings(max_examples=1_000)
@given(st.data())
def test_1000_fuzzed_run_files_are_read_or_rejected_by_name(
    finished: Path, data: st.DataObject
) -> None:
    check_damage(finished, data)
