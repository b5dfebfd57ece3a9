"""Lockstep's learners over every layout: the values of `transformers` at every cut, and a fault at
its place.

Two fp32 programs that sum in other orders are 1e-7 apart at a cut, given the same inputs; 2e-6
leaves room for that, and is 25 times less than `locate` takes for rounding by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faulty_taps
import pytest
import torch
from located import TOKENS, assert_column_of_logits, assert_every_cut, ends, functions
from tiers import full

from lockstep.core.errors import InputError
from lockstep_doctor.cuts import OUTPUT, CutPoint
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.hf import open_hf
from lockstep_doctor.locate import GapLocation, locate
from lockstep_doctor.taps.learners import AttachTap, open_learner, open_megatron, open_torch

TIGHT = 2e-6
Models = Callable[[str], Path]
OPENERS = {"torch": open_torch, "megatron": open_megatron}
MEGATRON = pytest.mark.needs("megatron")


def in_megatron(*case: object, marks: tuple[pytest.MarkDecorator, ...] = ()) -> object:
    return pytest.param("megatron", *case, marks=(MEGATRON, *marks))


LATER = (pytest.mark.full,)


@pytest.mark.parametrize(
    ("backend", "family", "parallel", "neighbors"),
    [
        ("torch", "llama", {}, 0),
        ("torch", "qwen3", {}, 2),
        ("torch", "mixtral", {}, 1),
        full("torch", "gemma2", {}, 0),
        ("torch", "qwen3", {"tp": 2}, 1),
        full("torch", "llama", {"dp": 2}, 0),
        full("torch", "qwen3_moe", {"cp": 2}, 1),
        full("torch", "qwen2", {"tp": 2, "cp": 2}, 1),
        in_megatron("qwen2", {"tp": 2}, 1),
        in_megatron("llama", {}, 0, marks=LATER),
        in_megatron("qwen3", {"pp": 2}, 0, marks=LATER),
        in_megatron("qwen3", {"cp": 2}, 1, marks=LATER),
        in_megatron("qwen2", {"pp": 2, "tp": 2}, 0, marks=LATER),
    ],
)
def test_learner_tap_matches_transformers_at_every_cut(
    located_model: Models, backend: str, family: str, parallel: Mapping[str, int], neighbors: int
) -> None:
    folder = located_model(family)
    with (
        open_hf(folder, EngineOptions()) as reference,
        OPENERS[backend](folder, EngineOptions(parallel=parallel, neighbors=neighbors)) as learner,
    ):
        right, own = reference.run(TOKENS, {}), learner.run(TOKENS, {})
        assert_every_cut(own, right)
        assert_column_of_logits(own)
        # `transformers` leaves the cap of attention out
        tight = TIGHT if family != "gemma2" else 2e-5
        assert not locate(reference, learner, TOKENS, tolerance=tight).all_segments
        assert_forced(learner, own.seen[CutPoint("attn", 1)])


def test_learner_cut_names_match_transformers_for_modernbert(located_model: Models) -> None:
    folder = located_model("modernbert-decoder")
    with (
        open_hf(folder, EngineOptions()) as reference,
        open_torch(folder, EngineOptions()) as learner,
    ):
        right = reference.run(TOKENS, {}).seen
        assert CutPoint("model.embeddings.norm") in right
        assert right.keys() == learner.run(TOKENS, {}).seen.keys()


def assert_forced(tap: Any, attn: torch.Tensor) -> None:
    """What is forced flows on, on every rank; and only then."""
    before = tap.run(TOKENS, {}).seen
    forced = tap.run(TOKENS, {CutPoint("attn", 1): torch.zeros_like(attn)}).seen
    assert not forced[CutPoint("o", 1)].any()
    assert torch.equal(forced[CutPoint("attn", 1)], before[CutPoint("attn", 1)])
    assert torch.equal(tap.run(TOKENS, {}).seen[OUTPUT], before[OUTPUT])


def find(folder: Path, backend: str, attach: AttachTap, parallel: Mapping[str, int]) -> GapLocation:
    with (
        open_hf(folder, EngineOptions()) as reference,
        open_hf(folder, EngineOptions(dtype=torch.float64)) as witness,
        open_learner(folder, EngineOptions(parallel=parallel), backend, attach) as learner,
    ):
        found = locate(reference, learner, TOKENS, witness)
        assert (
            found.places[0].engine_errors["hf"]
            < 1e-6
            < 1e-3
            < found.places[0].engine_errors[learner.name]
        )
        return found


@pytest.mark.parametrize(
    ("backend", "attach", "family", "parallel", "expected", "function"),
    [
        ("torch", faulty_taps.torch_scale, "llama", {}, {"attn"}, "FusedKernel.attend_causally"),
        (
            *("torch", faulty_taps.torch_positions, "qwen3", {"cp": 2}),
            *({"rotary_emb", "rotary_emb.1"}, "Qwen3RotaryEmbedding.forward"),
        ),
        (
            "torch",
            faulty_taps.torch_router,
            "qwen3_moe",
            {},
            {"router.1"},
            "Qwen3MoeTopKRouter.forward",
        ),
        in_megatron(
            faulty_taps.megatron_scale,
            "llama",
            {"cp": 2},
            {"attn"},
            "LayoutAttention.forward",
            marks=LATER,
        ),
        in_megatron(
            faulty_taps.megatron_positions, "qwen3", {"tp": 2}, {"attn"}, "PipelineStage.forward"
        ),
        in_megatron(
            faulty_taps.megatron_activation, "qwen2", {"pp": 2}, {"act"}, "MLP.forward", marks=LATER
        ),
        in_megatron(
            *(
                faulty_taps.megatron_split,
                "llama",
                {"tp": 2},
                {"k", "v"},
                "LinearWithFrozenWeight.forward",
            ),
            marks=LATER,
        ),
        in_megatron(
            *(
                faulty_taps.megatron_names,
                "llama",
                {},
                {"attn_norm", "mlp_norm"},
                "RMSNorm.forward",
            ),
            marks=LATER,
        ),
    ],
)
def test_learner_fault_is_located_at_its_source_function(
    located_model: Models,
    backend: str,
    attach: AttachTap,
    family: str,
    parallel: Mapping[str, int],
    expected: set[str],
    function: str,
) -> None:
    found = find(located_model(family), backend, attach, parallel)
    assert ends(found) == expected
    assert found.removed > 0.99
    assert any(function in one for names in functions(found)[:2] for one in names[:4])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (EngineOptions(dtype=torch.float64), "fp32 or bf16 or fp16"),
        (EngineOptions(prompt=3), "cannot decode"),
        (EngineOptions(parallel={"tp": 3}), "is not a multiple"),
    ],
)
def test_learner_tap_rejects_unsupported_options(
    located_model: Models, options: EngineOptions, said: str
) -> None:
    with pytest.raises(InputError, match=said), open_torch(located_model("llama"), options):
        pass
