"""Attention with caps and sinks by FlexAttention, against grids in float64, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from lockstep.core.batch import Batch
from lockstep.models.attention import Packed, attention
from lockstep.models.exact.attention import Blockwise
from lockstep.models.flex import Flex
from lockstep.models.kernels import FUSED, VARLEN, Kernel

LENGTHS = (70, 1, 33, 6, 128, 5, 12)
HEADS, GROUPS, SIZE = 4, 2, 16


def reference(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """The definition, sequence by sequence [1, N, H, D]."""
    found = []
    for one in zip(*(x[0].split(LENGTHS, dim=1) for x in (q, k, v)), strict=True):
        query, key, value = one[0], *(x.repeat_interleave(HEADS // GROUPS, 0) for x in one[1:])
        score = query @ key.mT * SIZE**-0.5
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])
        hidden = (distance < 0) | (distance >= (window or 10**9))
        score = score.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            score = torch.cat([score, sinks[:, None, None].expand(-1, query.shape[1], 1)], -1)
        found.append(score.softmax(-1)[..., : key.shape[1]] @ value)
    return torch.cat(found, 1).transpose(0, 1)[None]


@pytest.fixture
def backward_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch compute gradients on a CPU, too: it has them only where nothing is compiled, and refuses all."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.usefixtures("backward_here")
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(("softcap", "with_sinks"), [(2.0, False), (None, True), (2.0, True)])
def test_it_is_what_the_definition_says(window: int | None, softcap: float | None, with_sinks: bool) -> None:
    """In fp32 as near to float64 as grids are, of packed sequences, their gradients, and those of sinks."""
    torch.manual_seed(0)
    batch = Batch(torch.zeros(sum(LENGTHS), dtype=torch.int64), torch.tensor(LENGTHS))
    packed = Packed.of(batch)
    given = [3 * torch.randn(1, number, sum(LENGTHS), SIZE) for number in (HEADS, GROUPS, GROUPS)]
    given += [torch.randn(HEADS)] if with_sinks else []
    slope = torch.randn(1, sum(LENGTHS), HEADS, SIZE)

    def compute(kind: type[Blockwise] | None, dtype: torch.dtype) -> list[Tensor]:
        q, k, v, *sinks = own = [x.to(dtype).requires_grad_() for x in given]
        sink = sinks[0] if sinks else None
        if kind is None:
            out = reference(q, k, v, window, softcap, sink)
        else:
            out = packed.attend(kind(softcap, sink), 0, q, k, v, SIZE**-0.5, window)
        return [x.detach().double() for x in (out, *torch.autograd.grad(out, own, slope.to(dtype)))]

    true = compute(None, torch.float64)
    ours, padded = compute(Flex, torch.float32), compute(Blockwise, torch.float32)
    for one, other, expected in zip(ours, padded, true, strict=True):
        bound = 2e-5 * max(1.0, float(expected.abs().max()))
        assert (one - expected).abs().max() <= bound
        assert (other - expected).abs().max() <= bound


class Layer(nn.Module):
    layer_idx = 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_it_is_chosen_where_varlen_attention_is() -> None:
    """Of packed sequences with caps or sinks; heads that it does not take come in grids."""
    chosen = list[Kernel]()

    class Noting(Packed):
        def attend(self, kernel: Kernel, *given: Any, **named: Any) -> Tensor:
            chosen.append(kernel)
            return super().attend(kernel, *given, **named)

    batch = Batch(torch.zeros(9, dtype=torch.int64), torch.tensor([4, 5]))
    packed = Noting(**vars(Packed.of(batch)))
    for size, kernel in ((16, VARLEN), (16, FUSED), (12, VARLEN)):
        q, k, v = (torch.randn(1, 2, 9, size) for _ in range(3))
        out, _ = attention(Layer(), q, k, v, None, scaling=1.0, layout=packed, softcap=2.0, kernel=kernel)
        torch.testing.assert_close(out, Packed.of(batch).attend(Blockwise(2.0), 0, q, k, v, 1.0, None).view_as(out))
    assert [type(kernel) for kernel in chosen] == [Flex, Blockwise, Flex]
    assert Flex(2.0).takes(torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16))
    assert not Flex(2.0).takes(torch.zeros(1, 1, 1, 12), torch.zeros(1, 1, 1, 12))
