"""`transformers` by prefill and by decoding: the same values at every cut, and what the cache does
wrong is found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from located import TOKENS, ends, families, functions
from torch import nn
from transformers import DynamicCache

from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.hf import open_hf
from lockstep_doctor.locate import locate
from lockstep_doctor.modules import ModuleTap

DECODING = EngineOptions(prompt=5)


@pytest.mark.parametrize(
    "family", families("llama", "mixtral", full=("qwen3", "gemma2", "qwen3_moe", "gpt_neox"))
)
@pytest.mark.parametrize("prompt", [1, 9])
def test_hf_decoding_matches_prefill_at_every_cut(
    located_model: Callable[[str], Path], family: str, prompt: int
) -> None:
    folder = located_model(family)
    with (
        open_hf(folder, EngineOptions()) as prefill,
        open_hf(folder, EngineOptions(prompt=prompt)) as decoding,
    ):
        found = locate(prefill, decoding, TOKENS)
        assert not found.all_segments
        assert found.gap < 1e-5
        seen = prefill.run(TOKENS, {}).seen
        assert seen.keys() == decoding.run(TOKENS, {}).seen.keys()
        if family == "mixtral":
            assert {"router", "routed", "routed.1", "routed.2", "experts"} <= {
                cut.stage for cut in seen
            }


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        (
            "afmoe",
            {"self_attn.gate_proj", "mlp.gate_proj", "mlp.shared_experts.gate_proj"},
        ),  # of unlike widths
        (
            "falcon_h1",
            {"self_attn.o_proj", "mamba.out_proj", "self_attn.o_proj.in", "mamba.out_proj.in"},
        ),
    ],
)
def test_modules_with_same_short_name_get_separate_cuts(
    located_model: Callable[[str], Path], family: str, modules: set[str]
) -> None:
    with (
        open_hf(located_model(family), EngineOptions()) as plain,
        open_hf(located_model(family), EngineOptions()) as other,
    ):
        seen = plain.run(TOKENS, {}).seen
        assert modules <= {cut.stage for cut in seen}
        assert all(
            value.shape[-2] == len(TOKENS) for cut, value in seen.items() if cut.stage in modules
        )
        with torch.no_grad():
            for name, weight in other.model.named_parameters():
                weight.mul_(1.5 if name.endswith("0.self_attn.o_proj.weight") else 1.0)
        found = locate(plain, other, TOKENS)
    assert found.removed > 0.99
    assert ends(found) == {"o" if "self_attn.o_proj" not in modules else "self_attn.o_proj"}


def test_hf_tap_removes_its_hooks_and_profiler(located_model: Callable[[str], Path]) -> None:
    with open_hf(located_model("llama"), EngineOptions()) as tap:
        before = sys.getprofile()
        assert tap.functions(TOKENS)
        assert sys.getprofile() is before
        hooks = [
            hook
            for module in tap.model.modules()
            for hook in (module._forward_hooks, module._forward_pre_hooks)
        ]
    assert not any(hooks)


def test_extra_outputs_of_nested_modules_have_addresses() -> None:
    layer = nn.ModuleDict({one: nn.ModuleDict({"router": nn.Linear(2, 2)}) for one in ("a", "b")})
    tap = ModuleTap(nn.ModuleDict({"layers": nn.ModuleList([layer])}), "two routers")
    assert tap.find_address(CutPoint("a.router", 0)) == "layers.0.a.router|out|0"
    assert tap.find_address(CutPoint("a.router.1", 0)) == "layers.0.a.router|out|1"
    assert tap.find_address(CutPoint("router.1", 0)) is None


def test_keys_cached_in_bf16_are_located_at_attention(
    located_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    update = DynamicCache.update

    def keep_rounded(cache: DynamicCache, key: torch.Tensor, *others: object) -> object:
        return update(cache, key.bfloat16().float(), *others)  # pyright: ignore[reportArgumentType] (handed on)

    monkeypatch.setattr(DynamicCache, "update", keep_rounded)
    folder = located_model("llama")
    with open_hf(folder, EngineOptions()) as prefill, open_hf(folder, DECODING) as decoding:
        found = locate(prefill, decoding, TOKENS)
    assert ends(found) == {"attn"}
    assert found.removed > 0.99
    assert "keep_rounded" in functions(found)[0]


def test_wrong_decode_position_is_located_at_rotary_embedding(
    located_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = located_model("llama")
    with open_hf(folder, EngineOptions()) as prefill, open_hf(folder, DECODING) as decoding:
        rotary = decoding.model.get_submodule("model.rotary_emb")
        right = rotary.forward

        def turn(states: torch.Tensor, position_ids: torch.Tensor) -> object:
            return right(states, position_ids + int(states.shape[1] == 1))

        monkeypatch.setattr(rotary, "forward", turn)
        found = locate(prefill, decoding, TOKENS)
    assert ends(found) == {"rotary_emb", "rotary_emb.1"}
    assert {segment.first for segment in found.all_segments} == {5}
    assert "turn" in functions(found)[0]


@pytest.mark.parametrize("options", [EngineOptions(parallel={"tp": 2}), EngineOptions(neighbors=1)])
def test_hf_tap_rejects_parallel_and_neighbors_options(options: EngineOptions) -> None:
    with (
        pytest.raises(ValueError, match="one sequence in one process"),
        open_hf(Path("any"), options),
    ):
        pass
