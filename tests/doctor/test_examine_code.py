"""The examination of what code does between, or with, weights that are right: the layers tell it apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

from lockstep import keyed
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.base import Conditions, Layout
from lockstep.doctor.examine import Diagnosis, examine
from lockstep.doctor.selftest.fault import Change, Setup, built
from lockstep.doctor.selftest.ground import Ground
from lockstep.types import Request, SamplingParams

pytestmark = pytest.mark.full

Product = Callable[[nn.Linear, Tensor], Tensor]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


def examined(ground: Ground, change: Change, requests: int = 8, tokens: int = 24) -> Diagnosis:
    """Of plain `transformers`, changed, and the torch backend on the other side."""
    setup = Setup("llama", "torch", "hf") if change.side == "infer" else Setup("llama", "hf", "torch")
    case = built(ground, setup, [change])
    sampling = replace(case.sampling, max_tokens=tokens)
    return examine(case.train, case.infer, case.folder, case.requests[:requests], sampling)


def in_eight_bits(module: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, module.weight.to(torch.float8_e4m3fn).to(x.dtype))


def with_an_adapter(module: nn.Linear, x: Tensor) -> Tensor:
    draw = keyed.generator("adapter", module.out_features)
    down, up = (
        0.1 * torch.randn(shape, generator=draw) for shape in ((4, module.in_features), (module.out_features, 4))
    )
    return F.linear(x, module.weight) + x.float() @ down.T @ up.T


def heads_reversed(module: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, module.weight).unflatten(-1, (-1, 16)).flip(-2).flatten(-2)


def over_two_ranks(module: nn.Linear, x: Tensor) -> Tensor:
    half = module.in_features // 2
    parts = (slice(0, half), slice(half, None))
    return sum((F.linear(x[..., part], module.weight[:, part]).bfloat16() for part in parts), torch.zeros(())).to(x)


def in_sixteen_bits(module: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x.bfloat16(), module.weight.bfloat16()).to(x.dtype)


@pytest.mark.parametrize(
    ("product", "modules", "cause"),
    [
        (in_eight_bits, ("q_proj", "up_proj", "down_proj"), "quantised_weights"),
        (with_an_adapter, ("v_proj",), "stale_tensor"),
        (heads_reversed, ("q_proj",), "permuted_tensor"),
        (over_two_ranks, ("o_proj", "down_proj"), "parallel_reduction"),
        (in_sixteen_bits, ("q_proj", "o_proj", "up_proj", "down_proj"), "dtype"),
    ],
)
def test_what_code_does_with_right_weights_gets_the_name_of_wrong_ones(
    product: Product, modules: tuple[str, ...], cause: str, ground: Ground
) -> None:
    def alter(model: PreTrainedModel) -> None:
        for path, module in model.named_modules():
            if path.endswith(modules):
                assert isinstance(module, nn.Linear)
                module.forward = lambda input, module=module: product(module, input)

    diagnosis = examined(ground, Change("infer", alter=alter))
    assert {(one.cause, one.side) for one in diagnosis.causes} == {(cause, "infer")}


def neighbours_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Channels 2i and 2i + 1 are turned together, where the model turns i and i + half."""
    half = cos.shape[-1] // 2
    cos, sin = (x[..., :half].repeat_interleave(2, -1)[:, None] for x in (cos, sin))

    def turned(x: Tensor) -> Tensor:
        return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2) * sin

    return turned(q), turned(k)


def test_channels_that_are_turned_otherwise_are_no_fault_of_attention(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = modeling_llama.apply_rotary_pos_emb

    def alter(model: PreTrainedModel) -> None:
        for layer in model.base_model.get_submodule("layers").children():
            attention = layer.get_submodule("self_attn")
            attention.forward = _by_neighbours(attention.forward)

    def _by_neighbours(forward: Callable[..., Any]) -> Callable[..., Any]:
        def turned(*values: Any, **named: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(modeling_llama, "apply_rotary_pos_emb", neighbours_turned)
                return forward(*values, **named)

        return turned

    diagnosis = examined(ground, Change("infer", alter=alter))
    assert modeling_llama.apply_rotary_pos_emb is usual
    assert {(one.cause, one.side) for one in diagnosis.causes} == {("rope", "infer")}


class HidesWords(HFBackend):
    """Takes small ids for padding."""

    def passed(self, model: PreTrainedModel, sequences: Sequence[Tensor], layout: Layout) -> Sequence[Tensor]:
        padded = pad_sequence(list(sequences), batch_first=True)
        logits = model(input_ids=padded, attention_mask=(padded >= 40).long(), use_cache=False).logits
        return [own[: len(tokens)] for own, tokens in zip(logits, sequences, strict=True)]


def test_masks_that_hide_words_are_seen(ground: Ground) -> None:
    diagnosis = examined(ground, Change("train", HidesWords))
    (found,) = diagnosis.causes
    assert (found.cause, found.side) == ("attention", "train")
    assert "tokens hidden by its masks" in found.evidence[0]


class Forbids(HFBackend):
    """Some tokens are never drawn, and one more often than the model says; nothing else knows of it."""

    def drawn(
        self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
    ) -> tuple[Tensor, Tensor]:
        usual = model.lm_head.forward
        model.lm_head.forward = lambda x: self.biased(usual(x))
        try:
            return super().drawn(model, requests, sampling, conditions)
        finally:
            model.lm_head.forward = usual

    def biased(self, logits_V: Tensor) -> Tensor:
        bias = torch.zeros(logits_V.shape[-1])
        bias[10:20], bias[33] = -9.0, 1.5
        return logits_V + bias


def test_tokens_that_are_barred_are_seen(ground: Ground) -> None:
    diagnosis = examined(ground, Change("infer", Forbids), requests=24, tokens=32)
    (found,) = diagnosis.causes
    assert (found.cause, found.side) == ("penalty", "infer")
    assert "with other logits for some tokens" in found.evidence[0]


class SeesPadding(HFBackend):
    """Decodes with prompts padded on the left, and attends to what they are padded with."""

    def drawn(
        self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
    ) -> tuple[Tensor, Tensor]:
        usual = model.generate

        def sees(tokens: Tensor, attention_mask: Tensor, **named: Any) -> Any:
            seen = torch.ones_like(attention_mask)
            return usual(tokens, attention_mask=seen, **named)  # pyright: ignore[reportCallIssue] (a mixin's method)

        vars(model)["generate"] = sees
        try:
            return super().drawn(model, requests, sampling, conditions)
        finally:
            del vars(model)["generate"]


def test_padding_of_prompts_that_decoding_attends_to_is_seen(ground: Ground) -> None:
    diagnosis = examined(ground, Change("infer", SeesPadding))
    assert {(one.cause, one.side) for one in diagnosis.causes} == {("left_padding", "infer")}
