"""One model of a folder in variants, one for each set of conditions: types, kernels, configurations, parts in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lockstep.doctor.base import ROTARY, Conditions, DType, Part
from lockstep.errors import first_line
from lockstep.models.folder import CONFIG_ERRORS, ModelError, read_config, skeleton
from lockstep.models.weight_files import check_weights

TORCH_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PART_OF: Mapping[Part, Callable[[str], bool]] = {
    "norm": lambda path: path.endswith("norm"),
    "rope": lambda path: path.endswith(ROTARY),
    "router": lambda path: path.endswith((".gate", ".router")),
    "head": lambda path: path == "lm_head",
}

HOST = torch.device("cpu")
Alteration = Callable[[PreTrainedModel], None]
"""Change to a model after loading, such as patches or casts; applied to every variant."""


class Variants:
    """Models of one folder.

    Args:
        folder: A Hugging Face folder.
        weights: In which type they are held; None: in that of the computation.
        alter: Done to each variant when it is built.
        config: Fields that differ from the folder's configuration.
        device: Where they compute.
        kernels: Lets a model compute by the kernels for a device, and for bf16 or not.
    """

    def __init__(
        self,
        folder: str,
        weights: DType | None = None,
        alter: Alteration | None = None,
        config: Mapping[str, Any] | None = None,
        device: torch.device = HOST,
        kernels: Callable[[PreTrainedModel, torch.device, bool], None] | None = None,
    ) -> None:
        empty = skeleton(read_config(folder), folder)
        check_weights(folder, empty)
        self.sdpa = bool(empty._supports_sdpa)
        """True if the architecture supports fused attention."""
        self._folder, self._weights, self._alter = folder, weights, alter
        self._device, self._kernels = device, kernels
        self._config = dict(config or {})
        self._built: dict[tuple[Any, ...], PreTrainedModel] = {}
        self._loaded: dict[str, Tensor] = {}

    def config(self, changed: Iterable[tuple[str, Any]] = ()) -> PreTrainedConfig:
        """The configuration, with fields changed; `a.b` is field b of the mapping a."""
        config = AutoConfig.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        for name, value in chain(self._config.items(), changed):
            field, _, inner = name.partition(".")
            setattr(config, field, {**getattr(config, field), inner: value} if inner else value)
        return config

    def model(self, conditions: Conditions, attention: str) -> PreTrainedModel:
        """The model for some conditions, in evaluation mode unless the alteration says otherwise."""
        dtype = TORCH_TYPES[self._weights or conditions.dtype or "fp32"]
        bf16 = self._kernels is not None and self._device.type == "cuda" and conditions.dtype == "bf16"
        key = (dtype, attention, bf16, repr(conditions.config))
        if key not in self._built:
            try:
                model = AutoModelForCausalLM.from_pretrained(
                    self._folder,
                    config=self.config(conditions.config),
                    dtype=dtype,
                    attn_implementation=attention,
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                )
            except CONFIG_ERRORS as error:
                changed = ", ".join(f"{name}={value}" for name, value in conditions.config) or "its configuration"
                raise ModelError(
                    f"transformers cannot build the model in {self._folder} with {changed}: {first_line(error)}"
                ) from error
            model.eval()
            nn.Module.to(model, self._device)  # in place; its own `to` is typed for wrappers
            if self._kernels is not None:
                self._kernels(model, self._device, bf16)
            if self._alter is not None:
                self._alter(model)
            _copy(self._loaded, model, not conditions.config)
            self._built[key] = model
        return self._built[key]

    def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Puts tensors into all variants, and into those that are built later."""
        fresh = {name: tensor.clone() for name, tensor in stream}
        self._loaded |= fresh
        for key, model in self._built.items():
            _copy(fresh, model, key[-1] == repr(()))


def flat(config: PreTrainedConfig) -> dict[str, Any]:
    """A configuration as one mapping; what lies in a mapping gets both names, `a.b`."""
    return flat_fields(config.get_text_config().to_dict())


def flat_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same, of a configuration's fields."""
    inner = {
        f"{name}.{key}": v for name, value in fields.items() if isinstance(value, dict) for key, v in value.items()
    }
    own = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    return {name: value for name, value in {**own, **inner}.items() if name not in _NO_NUMBERS}


_NO_NUMBERS = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache", "torch_dtype")
"""Fields that change no number, or that `settings` tells."""


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers."""
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        yield name, tensor.detach()


@contextmanager
def evaluating(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Switches a model to evaluation mode if wanted, and restores its mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    if wanted:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def in_fp32(model: nn.Module, parts: frozenset[Part]) -> Iterator[None]:
    """Computes some parts in fp32, from what the others give them; all but the head give back the type they got."""
    chosen: list[tuple[Part, nn.Module]] = [
        (part, module)
        for path, module in model.named_modules()
        for part, belongs in _PART_OF.items()
        if part in parts and belongs(path)
    ]
    with ExitStack() as undo:
        for part, module in chosen:
            usual = module.forward
            module.forward = _widen(module, usual, part != "head")
            undo.callback(setattr, module, "forward", usual)
        yield


def _widen(module: nn.Module, usual: Callable[..., Any], keeps_type: bool) -> Callable[..., Any]:
    def forward(*inputs: Any, **named: Any) -> Any:
        device = next((x.device.type for x in inputs if isinstance(x, Tensor)), "cpu")
        given = next((x.dtype for x in inputs if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
        held = {name: tensor for name, tensor in tensors(module) if tensor.is_floating_point()}
        try:
            with torch.autocast(device, enabled=False):
                _retype(module, {name: tensor.float() for name, tensor in held.items()})
                output = usual(*(_float(x) for x in inputs), **{name: _float(x) for name, x in named.items()})
        finally:
            _retype(module, held)
        return _cast(output, given) if keeps_type else output

    return forward


def _retype(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if name in tensors:
            tensor.data = tensors[name]


def _float(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x


def _cast(output: Any, dtype: torch.dtype) -> Any:
    if isinstance(output, tuple):
        return tuple(_cast(x, dtype) for x in output)
    return output.to(dtype) if isinstance(output, Tensor) and output.is_floating_point() else output


@torch.no_grad()
def _copy(stream: Mapping[str, Tensor], model: nn.Module, buffers: bool) -> None:
    """Puts tensors into a model; not into buffers that its own configuration made otherwise."""
    own = dict(chain(model.named_parameters(), model.named_buffers() if buffers else ()))
    for name in stream if buffers else stream.keys() & own.keys():
        own[name].copy_(stream[name])
