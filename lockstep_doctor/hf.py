"""Taps on plain `transformers`: the engine `hf`, by prefill or decoding, and the witness in several
types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.modules import ModuleTap, read_plainly, use_default_dtype

_BUILDER = """import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({folder!r}, dtype={dtype}).to({device!r}).eval()


def read(tokens):
    return model(input_ids=tokens[None].to({device!r}), use_cache=False).logits[0]

"""


def load_model(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Loads a causal language model of `transformers` from local files; never runs their code."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    return model.to(device).eval()


def read_type(folder: Path) -> torch.dtype:
    """Returns the type of a folder's saved weights by its configuration; fp32 if it gives none."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if isinstance(config.dtype, torch.dtype):
        return config.dtype
    return torch.float32


@contextmanager
def open_hf(folder: Path, options: EngineOptions) -> Iterator[ModuleTap]:
    """Opens a folder; see `engines.OpenTap`."""
    if options.parallel or options.neighbors:
        raise ValueError(
            "the engine hf reads one sequence in one process; leave out parallel and neighbors"
        )
    model = load_model(folder, options.dtype, options.device)
    if options.dtype == torch.float64:
        model.set_experts_implementation("eager")  # torch has no grouped matmul in float64
    builder = _BUILDER.format(folder=str(folder), dtype=options.dtype, device=options.device)
    if options.prompt is None:
        yield ModuleTap(model, "hf", builder)
    else:
        read = read_by_decoding(options.prompt)
        yield ModuleTap(model, "hf decoding", read=read, prompt=options.prompt)


def read_by_decoding(prompt: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """Returns a function that reads a sequence with a cache: prefills `prompt` tokens and decodes
    the others one by one.
    """
    if prompt < 1:
        raise ValueError(f"prompt is {prompt}; decoding needs at least one prompt token")

    def decode_tokens(model: nn.Module, tokens_T: Tensor) -> Tensor:
        found = model(input_ids=tokens_T[None, :prompt], use_cache=True)
        logits = [found.logits[0]]
        for token in tokens_T[prompt:]:
            found = model(
                input_ids=token.view(1, 1), past_key_values=found.past_key_values, use_cache=True
            )
            logits.append(found.logits[0])
        return torch.cat(logits)

    return decode_tokens


def open_witnesses(folder: Path, device: str, *dtypes: torch.dtype) -> list[ModuleTap]:
    """Loads a folder once; returns a tap for each type of weights and activations.

    Memory: the weights in their saved type, plus a cast copy of the largest layer and of the
    weights outside layers. Buffers are created in fp32.
    """
    saved = read_type(folder)
    model = load_model(folder, torch.float32, "cpu")
    if saved.itemsize < torch.float32.itemsize:
        kept = model._keep_in_fp32_modules_strict
    else:
        kept = ()
    for name, weight in model.named_parameters():
        if not any(part in name for part in kept):
            weight.data = weight.data.to(saved)
    experts = model.config._experts_implementation
    model.to(device)
    taps: list[ModuleTap] = []
    for dtype in dtypes:
        read = partial(_read_sequence, dtype, experts)
        taps.append(ModuleTap(model, f"hf in {dtype}", read=read))
    return taps


def find_blocks(model: nn.Module) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Returns groups of weights to cast together, with the module that uses them: each layer, and
    everything outside layers.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = dict[nn.Module, list[nn.Parameter]]()
    inside = set[nn.Module]()
    for layer in chain.from_iterable(lists):
        if layer not in inside:
            layers[layer] = list(layer.parameters())
            inside.update(layer.modules())
    taken = set(chain.from_iterable(layers.values()))
    rest = [weight for weight in model.parameters() if weight not in taken]
    return [(model, rest), *layers.items()]


@contextmanager
def cast_by_block(
    model: nn.Module, dtype: torch.dtype, excluded: Sequence[str] = ()
) -> Iterator[None]:
    """Casts the weights of each block while it computes, except weights whose names contain one of
    `excluded`.
    """
    left = set[nn.Parameter]()
    for name, weight in model.named_parameters():
        if any(part in name for part in excluded):
            left.add(weight)
    kept: dict[nn.Parameter, Tensor] = {}

    def cast_weights(own: Sequence[nn.Parameter], *_: Any) -> None:
        for weight in own:
            kept[weight] = weight.data
            weight.data = weight.data.to(dtype)

    def restore_weights(own: Sequence[nn.Parameter], *_: Any) -> None:
        for weight in own:
            weight.data = kept.pop(weight)

    with ExitStack() as hooks:
        for module, weights in find_blocks(model):
            own = [weight for weight in weights if weight not in left]
            before = module.register_forward_pre_hook(partial(cast_weights, own))
            after = module.register_forward_hook(partial(restore_weights, own), always_call=True)
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


def _read_sequence(dtype: torch.dtype, experts: str, model: Any, tokens_T: Tensor) -> Tensor:
    """Reads a sequence in a type.

    Experts run eagerly in float64, since torch has no grouped matmul in it.
    """
    model.set_experts_implementation("eager" if dtype == torch.float64 else experts)
    if dtype.itemsize < 4:
        excluded = model._keep_in_fp32_modules_strict
    else:
        excluded = ()
    with use_default_dtype(dtype), cast_by_block(model, dtype, excluded):
        return read_plainly(model, tokens_T)
