"""Code that a recipe names is named before it is imported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lockstep.config import registry
from lockstep.environments.options import EnvironmentSection
from lockstep.rollouts.episodes import EnvironmentFault, Episodes

FAILS = "import os\nos.write(2, b'imported\\n')\nraise ValueError('no')\n"


WORLD = EnvironmentSection(class_name="world.py:World", max_turns=1, max_tokens=1)


def unheard(text: object, last: int) -> list[int]:
    raise NotImplementedError


def named(option: str, reference: str) -> str:
    """The note of a file, and what the file itself says when it is imported."""
    file = Path(reference.partition(":")[0])
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return f"note: {option} {reference} runs {file.resolve()} (sha256 {digest})\nimported\n"


@pytest.mark.usefixtures("in_tmp")
def test_an_algorithm_is_named_before_it_is_imported(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(FAILS)
    with pytest.raises(ValueError, match="cannot be imported"):
        registry.find("mine.py:Mine")
    assert capfd.readouterr().err == named("algorithm", "mine.py:Mine")
    registry.find("ppo")
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("in_tmp")
def test_an_environment_is_named_before_it_is_imported(capfd: pytest.CaptureFixture[str]) -> None:
    Path("world.py").write_text(FAILS)
    with pytest.raises(EnvironmentFault, match="cannot be imported"):
        Episodes(WORLD, (), str, lambda tools: unheard, print)
    said = capfd.readouterr()
    assert (said.err + said.out).replace("imported\n", "") + "imported\n" == named(
        "environment.class_name", "world.py:World"
    )
