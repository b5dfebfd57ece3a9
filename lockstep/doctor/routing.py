"""Choices of a mixture's routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.batch import Batch
from lockstep.doctor.base import Backend, Conditions

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ROUTERS = (".gate", ".router")


def count_experts(config: Mapping[str, Any]) -> int:
    """Routed experts of a layer; 0 where a model is no mixture."""
    return next((int(config[name]) for name in _COUNTS if config.get(name)), 0)


def record_experts(backend: Backend, network: nn.Module, sequences: Sequence[Tensor]) -> dict[str, Tensor]:
    """Returns ids of the chosen experts, by the router's name, of all tokens end to end [N, k].

    Args:
        sequences: Token ids [T], each read alone.
    """
    chosen = int(backend.config()["num_experts_per_tok"])  # where a router only gives logits
    found: dict[str, list[Tensor]] = {}

    def note(name: str, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        ids = next((part for part in parts if not part.is_floating_point()), None)
        ids = parts[0].topk(chosen, -1).indices if ids is None else ids
        found.setdefault(name, []).append(ids.reshape(-1, ids.shape[-1]).cpu())

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            if name.endswith(_ROUTERS):
                handle = module.register_forward_hook(lambda _, inputs, output, *, name=name: note(name, output))
                hooks.callback(handle.remove)
        for tokens_T in sequences:
            mask_T = torch.arange(len(tokens_T)) > 0
            backend.score(Batch(tokens_T, torch.tensor([len(tokens_T)]), {"mask": mask_T}), Conditions(batch_size=1))
    return {name: torch.cat(ids) for name, ids in found.items()}
