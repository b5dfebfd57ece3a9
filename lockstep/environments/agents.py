"""Agents: users' programs, each an episode of its own, run many at once in a helper process.

Has no heavy imports, so that the helper is small and starts fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.core.errors import InputError, shorten_text
from lockstep.environments.tools import replace_surrogates
from lockstep.helpers.process import AnswerFunction

ANSWER_FILE = "LOCKSTEP_ANSWER"
"""Environment variable: the file for the answer, if the program does not print it."""

ALIVE = "alive"
"""A reply that only shows that the helper runs."""

_ALIVE_S = 5.0
_LONGEST_ANSWER = 2**20
_LONGEST_COMPLAINT = 2**12


class _ProgramFailed(Exception):
    """A program gave no answer; the text describes why."""


def answers(concurrency: str, *command: str) -> AnswerFunction:
    """Runs in the helper process: answers a list of episodes as they end, in any order.

    A question has `timeout_s` and `episodes`, each with `number`, `row` and `variables`. A reply
    has `number`, and `answer` or `wrong`.

    Args:
        concurrency: The number of programs that run at once.
        command: The program and its arguments.

    Raises:
        InputError: The program cannot be found.
    """
    if shutil.which(command[0]) is None:
        raise InputError(
            f"environment.command starts {command[0]!r}, which is not a program on this machine; "
            "check the name, or use an absolute path"
        )
    return partial(_run_programs, command, int(concurrency))


def call_function_command(reference: str) -> list[str]:
    """The command that calls a Python function as an agent."""
    return [sys.executable, "-m", "lockstep.environments.call_agent", reference]


def _run_programs(
    command: Sequence[str], concurrency: int, question: dict[str, Any], /
) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    slots = asyncio.Semaphore(concurrency)
    left = set[asyncio.Task[dict[str, Any]]]()
    for episode in question["episodes"]:
        run = _answer_episode(command, slots, episode, question["timeout_s"])
        left.add(loop.create_task(run))
    while left:
        wait = asyncio.wait(left, timeout=_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
        done, left = loop.run_until_complete(wait)
        if not done:
            yield ALIVE
        for task in done:
            yield task.result()
    loop.close()


async def _answer_episode(
    command: Sequence[str], slots: asyncio.Semaphore, episode: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    number = {"number": episode["number"]}
    async with slots:
        try:
            answer = await _run_program(command, episode, timeout_s)
        except TimeoutError:
            return number | {"wrong": f"timed out after {timeout_s:g} s"}
        except (_ProgramFailed, OSError) as error:
            return number | {"wrong": str(error)}
    return number | {"answer": answer}


async def _run_program(command: Sequence[str], episode: dict[str, Any], timeout_s: float) -> str:
    with TemporaryDirectory(prefix="lockstep-agent-") as folder:
        file = Path(folder, "answer")
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **episode["variables"], ANSWER_FILE: str(file)},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                printed, complaint = await _talk(process, json.dumps(episode["row"]).encode())
                status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if status:
            raise _ProgramFailed(_describe_status(status, complaint))
        if file.is_file():
            printed = file.read_bytes()[: _LONGEST_ANSWER + 1]
    if len(printed) > _LONGEST_ANSWER:
        raise _ProgramFailed(f"answered more than {_LONGEST_ANSWER // 2**20} MiB")
    return replace_surrogates(printed.decode("utf-8", "replace").strip())


async def _talk(process: asyncio.subprocess.Process, row: bytes) -> tuple[bytes, bytes]:
    """Writes the row; reads the beginning of the output and the end of the error output."""
    assert process.stdin is not None, "stdin is a pipe"
    assert process.stdout is not None, "stdout is a pipe"
    assert process.stderr is not None, "stderr is a pipe"
    async with asyncio.TaskGroup() as group:
        group.create_task(_feed_row(process.stdin, row))
        printed = group.create_task(_read_output(process.stdout, _LONGEST_ANSWER + 1, False))
        complaint = group.create_task(_read_output(process.stderr, _LONGEST_COMPLAINT, True))
    return printed.result(), complaint.result()


async def _feed_row(stdin: asyncio.StreamWriter, row: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not be read
        stdin.write(row + b"\n")
        await stdin.drain()
    stdin.close()


async def _read_output(stream: asyncio.StreamReader, limit: int, is_end: bool) -> bytes:
    """Reads to the end; keeps only the first, or the last, `limit` bytes."""
    kept = b""
    while part := await stream.read(2**16):
        if is_end:
            kept = (kept + part)[-limit:]
        elif len(kept) < limit:
            kept += part
    return kept[:limit]


def _describe_status(status: int, complaint: bytes) -> str:
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    else:
        how = f"ended with exit status {status}"
    if lines:
        return f"{how} ({shorten_text(replace_surrogates(lines[-1]))})"
    return how
