"""Miniature models: one layer of every kind in a configuration, with random weights.

Sizes that only cost time are reduced (vocabulary, hidden units of MLPs, experts, heads of wide
models), as are windows and chunks, so that short sequences already exceed them. Head size, rotary
positions and the kinds of layers stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lockstep.core import keyed
from lockstep.models import attention
from lockstep.models.folder import CONFIG_ERRORS, ModelError, build_skeleton, config_reason
from lockstep.models.parallelize import list_layers

_VOCABULARY = 512
_HIDDEN_UNITS = 64
_HIDDEN = 512
_EXPERTS = 8
_WINDOW = 4
_GAIN = 1.1
"""Standard deviation of weights times √hidden size.

Large enough that a wrong neighbor or position changes every result.
"""

_HIDDEN_UNIT_FIELDS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "ffn_dim",
)
_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
_HEAD_FIELDS = (
    "num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads",
    "mamba_n_heads",
    "linear_num_heads", "mamba_num_heads", "mamba_d_ssm", "num_heads",
)  # fmt: skip
_WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "chunk_size", "mamba_chunk_size")
"""Fields for windows and state chunks; shortened below a sequence's length to test both ends."""
_TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")

ConfigFields = dict[str, Any]
"""Fields of a configuration, as config.json holds them."""


def build_miniature(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Builds a small random model with every kind of layer, fp32 on the CPU, with our attention.

    Args:
        config: Configuration of the original model.
        seed: Seed of the weights.

    Raises:
        ModelError: If `transformers` cannot build or run the model.
    """
    full = build_skeleton(config, config.name_or_path or config.model_type)
    error = None
    for small in _list_smaller(config, full):
        try:
            model = small()
            if set(_list_layer_kinds(build_skeleton(model, config.model_type))) == set(
                _list_layer_kinds(full)
            ):
                return _build_runnable(model, seed)
        except ModelError as wrong:
            error = wrong
        except CONFIG_ERRORS as wrong:  # incompatible fields
            error = ModelError(f"{config.model_type}: {config_reason(wrong)}")
    raise error or ModelError(
        f"{config.model_type}: cannot build a smaller model with the same layer types"
    )


def _list_smaller(
    config: PreTrainedConfig, full: PreTrainedModel
) -> Iterator[Callable[[], PreTrainedConfig]]:
    """Yields factories of smaller configurations, smallest first; some may fail."""
    text = config.get_text_config()
    kinds = _list_layer_kinds(full)
    if not kinds:
        raise ModelError(
            f"{type(full).__name__} has no layer of a class in its _no_split_modules; add its "
            "layer class there"
        )
    own = text.attribute_map  # this configuration's names of common fields
    fields = text.to_dict()
    common = dict(fields)
    for name, called in own.items():
        if called in fields:
            common[name] = fields[called]
    for name in _WINDOW_FIELDS:
        if common.get(name) is not None:
            common[name] = min(common[name], _WINDOW)
    firsts = sorted({kind: layer for layer, kind in reversed(list(enumerate(kinds)))}.values())
    choices = dict.fromkeys((tuple(firsts), tuple(range(firsts[-1] + 1)), tuple(range(len(kinds)))))
    for widths, layers in itertools.product(
        (_thin_heads(_narrow_layers(common)), _narrow_layers(common), common), choices
    ):
        cut = _with_layers(widths, layers, len(kinds))
        for name, called in own.items():
            if name in cut:
                cut[called] = cut.pop(name)
        yield partial(type(text).from_dict, cut)


def _build_runnable(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Builds the model and tries a few tokens with it in plain `transformers`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed.hash_key("miniature", seed) & (2**63 - 1))
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention.NAME, dtype=torch.float32, trust_remote_code=False
        )
        for parameter in (parameter for parameter in model.parameters() if parameter.ndim == 1):
            # biases of 0 and norms of 1 would hide bugs
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval()
    try:
        plain_logits(model, torch.arange(3))
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        AssertionError,
    ) as error:
        raise ModelError(
            f"{config.model_type}: transformers cannot run it here ({error})"
        ) from error
    return model


@torch.no_grad()
def plain_logits(model: PreTrainedModel, tokens_T: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of one sequence by plain `transformers`: no packing, no cache."""
    model.set_attn_implementation("eager")
    try:
        return model(input_ids=tokens_T[None].to(model.device), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(attention.NAME)


def _list_layer_kinds(model: PreTrainedModel) -> list[tuple[object, ...]]:
    """Kind of each layer: its modules and enabled features, regardless of sizes."""
    kinds = list[tuple[object, ...]]()
    for layer in list_layers(model):
        modules = layer.named_modules()
        parts = ((name, type(module).__name__, *_list_features(module)) for name, module in modules)
        kinds.append(tuple(parts))
    return kinds


def _list_features(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_") and (value is None or isinstance(value, bool | str)):
            yield name, value


def _narrow_layers(fields: ConfigFields) -> ConfigFields:
    """Reduces vocabulary, hidden units and experts, whose numbers only cost time."""
    cut = dict(fields)
    cut["vocab_size"] = min(fields["vocab_size"], _VOCABULARY)
    for name in _HIDDEN_UNIT_FIELDS:
        if isinstance(fields.get(name), int):
            cut[name] = min(fields[name], _HIDDEN_UNITS)
    chosen = fields.get("num_experts_per_tok") or 1
    groups = fields.get("n_group") or 1
    for name in _EXPERT_FIELDS:
        if isinstance(fields.get(name), int):
            cut[name] = min(fields[name], max(_EXPERTS, 2 * chosen, 4 * groups))
    for name in _TOKEN_FIELDS:
        ids = fields.get(name)
        if ids is not None and max(ids if isinstance(ids, list) else [ids]) >= cut["vocab_size"]:
            cut[name] = None
    return cut


def _thin_heads(fields: ConfigFields) -> ConfigFields:
    """Reduces the number of heads and of states with heads; head size stays."""
    counts = {name: fields[name] for name in _HEAD_FIELDS if isinstance(fields.get(name), int)}
    heads = [
        counts[name] for name in ("num_attention_heads", "num_key_value_heads") if counts.get(name)
    ]
    factor = 1
    while fields["hidden_size"] >= 2 * _HIDDEN * factor and all(
        n % (2 * factor) == 0 for n in heads
    ):
        factor *= 2
    cut = {name: n // factor if n % factor == 0 else n for name, n in counts.items()}
    return {**fields, **cut, "hidden_size": fields["hidden_size"] // factor}


def _with_layers(fields: ConfigFields, layers: Sequence[int], count: int) -> ConfigFields:
    """Keeps only `layers`, out of `count`; shortens lists with one entry per layer to match."""
    cut = dict(fields)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == count:
            cut[name] = [value[layer] for layer in layers]
    cut["num_hidden_layers"] = len(layers)
    cut["initializer_range"] = _GAIN / math.sqrt(fields["hidden_size"])
    return cut
