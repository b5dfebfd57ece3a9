"""What a side observed, against what it was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import model_folder

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.base import Conditions
from lockstep.doctor.case import View
from lockstep.doctor.probes.proof import against


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    return View(HFBackend(str(model_folder(tmp_path_factory.mktemp("model"), "llama"))))


@pytest.mark.parametrize(
    ("asked", "seen", "said"),
    [
        (Conditions(dtype="bf16"), {"dtype": "float32"}, "dtype bfloat16, and computed with float32"),
        (Conditions(layout="alone"), {"layout": "padded"}, "layout alone, and computed with padded"),
        (Conditions(kernel="eager"), {"kernel": "sdpa"}, "kernel eager, and computed with sdpa"),
        (Conditions(batch_size=1), {"rows": 8}, "1 sequences at a time, and computed 8"),
        (Conditions(parts=frozenset(("norm", "softmax"))), {"parts": {"head"}}, "fp32 in norm, and no such module"),
        (Conditions(evaluation=True), {"training": True}, "evaluation mode, and was in training mode"),
        (Conditions(fresh=True), {"prefix_hits": 64}, "no caches, and read 64 tokens from one"),
        (Conditions(unchunked=True), {"unchunked": False}, "prompts read whole, and read them in parts"),
    ],
)
def test_what_was_seen_speaks_against_what_was_asked(
    view: View, asked: Conditions, seen: dict[str, Any], said: str
) -> None:
    assert said in str(against(view, asked, seen))
    assert against(view, asked, {}) is None
    assert against(view, Conditions(), seen) is None
