"""Peak memory of real ranks against the plan of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plan import CASES, compared
from benchmarks.plan_measure import TINY, model_folder

pytestmark = pytest.mark.full

DAILY = ("one process, checkpointed", "tp 2")
FIELDS = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("planned")
    return model_folder(root / "model", FIELDS), model_folder(root / "tiny", TINY)


@pytest.mark.needs("gloo")
@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.proof)])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(n, id=c[0], marks=() if c[0] in DAILY else pytest.mark.proof)
        for n, c in enumerate(CASES)
    ],
)
def test_planned_peak_memory_is_within_15_percent_of_measured(
    folders: tuple[Path, Path], case: int, passes: int
) -> None:
    measured, planned = compared(*folders, tokens=1024, case=case, passes=passes)
    assert planned == pytest.approx(measured, rel=0.15)
