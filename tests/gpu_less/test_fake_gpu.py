"""Forward passes with torch's own fake tensors on `cuda:0`, which have no numbers: what mixes
devices is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretend_gpu import GPU, TorchCalls
from tiny_models import ARCHITECTURES, ragged
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from lockstep.models.attention import NAME, UNPADDED
from lockstep.models.heads import ValueHead
from lockstep.models.load import load_backbone

LENGTHS = (7, 2, 19, 4, 33)


class Indexing(TorchFunctionMode):
    """Indexes by operations alone: in Python, torch looks for the device first, which it was not
    built for.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        x, index = args
        parts, dim = index if isinstance(index, tuple) else (index,), 0
        whole = x.dim() - sum(part is not None and part is not ... for part in parts)
        for part in parts:
            if part is ...:
                dim += whole
            elif part is None:
                x, dim = x.unsqueeze(dim), dim + 1
            elif isinstance(part, slice):
                x, dim = (
                    torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1),
                    dim + 1,
                )
            elif isinstance(part, int):
                x = x.select(dim, part)
            else:
                x, dim = torch.ops.aten.index(x, [*[None] * dim, part]), dim + 1
        return x


def onto(fake: FakeTensorMode, tensor: Tensor) -> Tensor:
    """The same tensor on the GPU, without its numbers."""
    with fake:
        return torch.empty_like(fake.from_tensor(tensor), device=GPU)


def move(fake: FakeTensorMode, model: nn.Module) -> None:
    """Moves a model, as `onto` does a tensor."""
    for module in model.modules():
        tensors: list[dict[str, Any]] = [module._parameters, module._buffers]
        for held in tensors:
            held.update(
                {name: None if x is None else onto(fake, x.detach()) for name, x in held.items()}
            )


@pytest.mark.parametrize("attention", [NAME, UNPADDED])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_pass_stays_on_the_gpu(models: Callable[..., Path], kind: str, attention: str) -> None:
    fake, batch = FakeTensorMode(), ragged(LENGTHS)
    model = ValueHead(load_backbone(models(kind)), 0)
    model.backbone.set_attn_implementation(attention)
    laid = model.lay_out(batch).map(lambda tensor: onto(fake, tensor))
    move(fake, model)
    with fake, TorchCalls(), Indexing(), torch.no_grad():
        outputs = model(laid)
    assert outputs.value.device == outputs.final_value.device == GPU
    assert outputs.value.shape == batch.tokens.shape
