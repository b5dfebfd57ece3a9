"""Hostile arguments of commands, dumps and doctor's results: one sentence each, or the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_cases import COMMANDS, DUMPS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_invalid_command_argument_exits_with_stated_code_and_message(
    name: str, with_a_run: Path, refuses: Any
) -> None:
    spoil, *expected = COMMANDS[name]
    spoil(with_a_run)
    refuses(with_a_run, *expected)


@pytest.mark.parametrize("name", sorted(DUMPS))
def test_invalid_dump_exits_with_stated_code_and_message(
    name: str, here: Path, refuses: Any
) -> None:
    spoil, *expected = DUMPS[name]
    spoil(here)
    refuses(here, *expected)
