"""Hostile inputs beyond the catalogue: each ends in one sentence that names what is wrong, and none
is trained on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forked_commands import run_command
from hostile_data import DATA
from hostile_models import MODELS
from hostile_recipes import NEW_MODELS, OVERRIDES, RECIPES, REWARDS
from workspace import furnish

from lockstep.core import exit_codes

INPUTS = {**RECIPES, **NEW_MODELS, **OVERRIDES, **DATA, **MODELS, **REWARDS}
LONGEST_SENTENCE, LONGEST_S = 1500, 300.0
REFUSED = (exit_codes.INPUT, exit_codes.INCONCLUSIVE)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("furnished")
    furnish(folder)
    return folder


CASES = [
    pytest.param(name, id=name, marks=pytest.mark.full if place % 4 else ())
    for place, name in enumerate(INPUTS)
]


@pytest.mark.parametrize("name", CASES)
def test_hostile_input_is_accepted_or_rejected_with_short_reason(
    name: str, furnished: Path, tmp_path: Path
) -> None:
    hostile, here = INPUTS[name], tmp_path / "here"
    shutil.copytree(furnished, here)
    if hostile.spoil is not None:
        hostile.spoil(here)
    outcome = run_command(here, hostile.command, silence_s=LONGEST_S, longest_s=LONGEST_S)
    assert outcome.code is not None, f"it hangs: {outcome.said}"
    if hostile.accepted:
        assert outcome.code == exit_codes.OK, outcome.said
        return
    text = outcome.said if outcome.code == exit_codes.OK else outcome.sentence
    lost = outcome.code == exit_codes.CRASH and "the same command resumes the run" in hostile.says
    noted = outcome.code == exit_codes.OK and "note" in text
    assert outcome.code in REFUSED or noted or lost, outcome.said
    assert all(part in text for part in hostile.says), text
    assert len(outcome.sentence) < LONGEST_SENTENCE
