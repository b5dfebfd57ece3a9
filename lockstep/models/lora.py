"""Low-rank adapters (Hu et al. 2021) on linear maps: created, merged and written by peft.

A weight becomes W + (α / r) · B·A, of which only A and B are trained. There is no dropout, which
would make the trained policy differ from the sampling policy. peft is imported only when needed.

Letters: r rank; W [out, in], B [out, r], A [r, in].
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.config import LoRA
from lockstep.core import keyed
from lockstep.core.errors import InputError, install_command
from lockstep.models.parallelize import list_layers

_ADAPTER = "default"


def is_adapter(name: str) -> bool:
    """True if a head's parameter belongs to an adapter, by its name."""
    return ".lora_A." in name or ".lora_B." in name


def is_trained(name: str) -> bool:
    """True if a parameter of an adapted head is trained: adapters and a value head's unit are."""
    return is_adapter(name) or name.startswith("value.")


def name_in_file(name: str) -> str:
    """The name of a tensor in peft's files, from its name in the model's files."""
    return f"base_model.model.{name.replace(f'.{_ADAPTER}.', '.')}"


def require_peft() -> None:
    """Raises ValueError if peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            f"learner.lora needs peft, which is not installed; {install_command('lora')}"
        )


def list_targets(network: PreTrainedModel, section: LoRA) -> list[str]:
    """Name endings of the linear maps that get adapters.

    Raises:
        ValueError: If no linear map has an ending, or a linear map outside the layers has it.
    """
    within = set[nn.Module]()
    for layer in list_layers(network):
        within.update(layer.modules())
    linear = _linear_maps(network)
    there = sorted({name.rpartition(".")[2] for name, module in linear.items() if module in within})
    if not there:
        raise InputError(
            f"learner.lora: a {network.config.model_type} has no linear layers to adapt; leave it "
            "out"
        )
    if section.target_modules in (None, "all-linear"):
        endings = there
    else:
        endings = list(section.target_modules)
    for ending in endings:
        named = [module for name, module in linear.items() if _has_ending(name, ending)]
        if not named or not within.issuperset(named):
            raise InputError(
                f"learner.lora.target_modules: {ending} must match only linear layers; choose "
                f"from: {', '.join(there)}"
            )
    return endings


def find_adapted(network: PreTrainedModel, section: LoRA) -> list[nn.Linear]:
    """Linear maps that get adapters; raises the errors of `list_targets`."""
    endings = list_targets(network, section)
    adapted = list[nn.Linear]()
    for name, module in _linear_maps(network).items():
        if any(_has_ending(name, ending) for ending in endings):
            adapted.append(module)
    return adapted


def _linear_maps(network: nn.Module) -> dict[str, nn.Linear]:
    modules = network.named_modules()
    return {name: module for name, module in modules if isinstance(module, nn.Linear)}


def _has_ending(name: str, ending: str) -> bool:
    """True if peft matches `ending` to a module's name, which it does by complete parts."""
    return f".{name}".endswith(f".{ending}")


def add_adapters(network: PreTrainedModel, section: LoRA) -> None:
    """Adds adapters to an unsharded network, in place, and freezes all other parameters."""
    config = build_adapter_config(network, section)
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, network, _ADAPTER)


def build_adapter_config(network: PreTrainedModel, section: LoRA, **fields: Any) -> Any:
    """peft's configuration of a network's adapters.

    Raises:
        ValueError: If peft is not installed, or as `list_targets`.
    """
    require_peft()
    from peft import LoraConfig

    wanted = list_targets(network, section)
    return LoraConfig(
        r=section.rank, lora_alpha=section.alpha, lora_dropout=0.0, target_modules=wanted, **fields
    )


def first_weights(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Initial weights of adapters, by their names in a head: A as in peft, B zero.

    Random numbers are keyed by name, so that the weights are the same under any layout of ranks.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            found[name] = torch.zeros(parameter.shape, device="cpu")
            if ".lora_A." in name:
                bound = 1.0 / math.sqrt(parameter.shape[1])
                found[name].uniform_(
                    -bound, bound, generator=keyed.build_generator("adapter", seed, name)
                )
    return found


def build_merges(model: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    """Maps each adapted W's name to a function that returns W + (α / r) · B·A, out of place."""
    from peft.tuners.lora import LoraLayer

    merges: dict[str, Callable[[Tensor], Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            merges[f"{name}.base_layer.weight"] = partial(_merge_adapter, module)
    return merges


@torch.no_grad()
def _merge_adapter(layer: Any, weight: Tensor) -> Tensor:
    return weight + layer.get_delta_weight(_ADAPTER)
