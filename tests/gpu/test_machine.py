"""What a machine with a GPU has to show: all that `lockstep gpu-check` checks there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.core import exit_codes
from lockstep_doctor.machine.command import check_machine

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(600)
def test_gpu_check_passes_and_memory_is_within_15_percent_of_plan(tmp_path: Path) -> None:
    """Memory of a learner is within 15 % of the plan; nothing is broken and nothing fails."""
    code = check_machine("cuda", tmp_path)
    told = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
    assert code == exit_codes.OK, [
        one["note"] for one in told if one["state"] in ("broken", "failed")
    ]
    shares = [
        one["measured"]["peak / planned"] for one in told if "peak / planned" in one["measured"]
    ]
    assert shares
    assert all(0.85 <= share <= 1.15 for share in shares)
