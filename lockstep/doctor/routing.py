"""Choices of a mixture's routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.doctor.base import Network

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ROUTERS = (".gate", ".router")


def count_experts(config: Mapping[str, Any]) -> int:
    """Routed experts of a layer; 0 where a model is no mixture."""
    return next((int(config[name]) for name in _COUNTS if config.get(name)), 0)


def record_experts(network: Network, sequences: Sequence[Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns ids of the chosen experts, by the router's name, of all tokens end to end [N, k].

    Args:
        network: The model.
        sequences: Token ids [T], each read alone.
        config: Says how many are chosen where a router only gives logits.
    """
    found: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks:
        for name, module in network.modules.named_modules():
            if name.endswith(_ROUTERS):
                found[name] = own = []
                handle = module.register_forward_hook(_noting(own, int(config["num_experts_per_tok"])))
                hooks.callback(handle.remove)
        for tokens in sequences:
            network.logits(tokens)
    return {name: torch.cat(ids) for name, ids in found.items()}


def _noting(into: list[Tensor], chosen: int) -> Any:
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        ids = next((part for part in parts if not part.is_floating_point()), None)
        ids = parts[0].topk(chosen, -1).indices if ids is None else ids
        into.append(ids.reshape(-1, ids.shape[-1]).cpu())

    return note
