"""Programs whose code is edited: how each builds a small random model and reads a sequence with
it.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lockstep.core.batch import Batch
from lockstep.distributed.ranks import ALONE
from lockstep.models import attention
from lockstep.models.cut import RowShare
from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.weight_sync.carriers import TransferRoute
from lockstep.weight_sync.outgoing import OutgoingWeights
from lockstep.weight_sync.sender import LocalSender
from lockstep_doctor.taps.torch_sampler import SamplerTap

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
FAMILIES = ("llama", "gemma2", "qwen3", "qwen3_moe", "phi3")
TOKENS = 24
_SHARED = (
    "transformers.modeling_rope_utils",
    "transformers.masking_utils",
    "transformers.integrations.sdpa_attention",
)
_LOADING = ("transformers.core_model_loading", "transformers.modeling_utils")
_FROM_FILES = ("qwen3_moe", "phi3")
_PACKING = (
    "lockstep.core.batch",
    "lockstep.models.cut",
    "lockstep.models.heads",
    "lockstep.models.kernels",
)
_SAMPLING = (
    "lockstep.samplers.torch.scheduler",
    "lockstep.samplers.torch.continuous",
    "lockstep.models.kernels",
)
_SYNC = tuple(
    f"lockstep.weight_sync.{name}"
    for name in ("buckets", "carriers", "fingerprints", "outgoing", "sender")
)

Read = Callable[[nn.Module, Tensor], Tensor]
"""Function from a model and ids [T] to logits [T, V]."""


@dataclass(frozen=True)
class Program:
    """A program whose code is edited.

    Attributes:
        name: In tables.
        modules: Python modules whose functions are edited.
        build: Makes the model, with the same weights each time.
        read: Reads a sequence with it.
        witness: Makes the model that is right, in float64.
    """

    name: str
    modules: Sequence[str]
    build: Callable[[], nn.Module]
    read: Read
    witness: Callable[[], nn.Module]

    @property
    def files(self) -> Iterator[str]:
        """Paths of its modules."""
        yield from (str(importlib.import_module(name).__file__) for name in self.modules)


def find_programs() -> dict[str, Program]:
    """All programs, by name."""
    families = [in_transformers(family) for family in FAMILIES]
    shared = [in_transformers("gemma2", _SHARED, "masks and angles")]
    learner = [
        _in_lockstep("Lockstep's attention", ["lockstep.models.attention"], read_as_learner),
        _in_lockstep("learner's packing", _PACKING, read_as_learner),
    ]
    sampler = _in_lockstep("torch sampler", _SAMPLING, read_as_sampler)
    carried = [*map(_loaded, _FROM_FILES), _sent("llama")]
    return {one.name: one for one in (*families, *shared, *learner, sampler, *carried)}


def in_transformers(family: str, modules: Sequence[str] = (), name: str = "") -> Program:
    """A model as `transformers` computes it; by default its family's code is edited."""
    modules = modules or [f"transformers.models.{family}.modeling_{family}"]
    return Program(
        name or family, modules, lambda: build(family), read, lambda: build(family).double()
    )


def _in_lockstep(name: str, modules: Sequence[str], reads: Read) -> Program:
    """A llama as an engine of Lockstep computes it."""
    return Program(
        name,
        modules,
        lambda: build("llama", attention.NAME),
        reads,
        lambda: build("llama").double(),
    )


def _loaded(family: str) -> Program:
    """A family read from its folder."""
    return Program(
        f"loading {family}",
        _LOADING,
        lambda: settle(load_causal_lm(save(family))),
        read_as_learner,
        lambda: build(family).double(),
    )


def _sent(family: str) -> Program:
    """A family whose weights a learner sends to a sampler, in buckets."""

    def send() -> nn.Module:
        model = build(family, attention.NAME)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        sampler = TorchSampler(model, 1)
        sender = LocalSender()
        outgoing = OutgoingWeights(build(family).named_parameters, torch.float32)
        route = TransferRoute("shared_memory", sender.file_paths)
        sender.open_route(route)
        sampler.join(route)
        for bucket in sender.fill_buckets(outgoing, columns=True):
            sender.ship_bucket(bucket)
            sampler.receive(bucket)
        return model

    return Program("weight sync", _SYNC, send, read_as_learner, lambda: build(family).double())


def config_of(family: str) -> PreTrainedConfig:
    """A small configuration of a family."""
    usual = AutoConfig.for_model(family)
    sizes = {name: size for name, size in SIZES.items() if getattr(usual, name, None) is not None}
    return AutoConfig.for_model(family, **(sizes | {"pad_token_id": None}))


def build(family: str, kernel: str = "sdpa") -> PreTrainedModel:
    """A model of a family with the weights that all have."""
    config = config_of(family)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=kernel)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(weights_of(family)[name])
    return settle(model)


def settle(model: PreTrainedModel) -> PreTrainedModel:
    """The model in evaluation mode, with experts that compute in float64, too."""
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")
    return model.eval()


@cache
def weights_of(family: str) -> dict[str, Tensor]:
    """Random weights, large enough for each to matter."""
    model = AutoModelForCausalLM.from_config(config_of(family))
    chance = torch.Generator().manual_seed(1)
    return {
        name: 0.15 * torch.randn(tensor.shape, generator=chance) + float(tensor.ndim == 1)
        for name, tensor in model.named_parameters()
    }


@cache
def save(family: str) -> str:
    """The folder of a family's model."""
    folder = Path(tempfile.mkdtemp(prefix=f"lockstep-{family}-"))
    build(family).save_pretrained(folder)
    return str(folder)


def read(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """Reads a sequence as `transformers` does."""
    return model(input_ids=tokens_T[None], use_cache=False).logits[0]


def read_as_learner(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """Reads a sequence as the torch learner does."""
    return model(
        **RowShare.from_batch(Batch(tokens_T, torch.tensor([len(tokens_T)])), ALONE).model_inputs
    ).logits[0]


def read_as_sampler(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """Reads a sequence as the torch sampler does that calls the modules of a model, which draws the
    last quarter.
    """
    assert isinstance(model, PreTrainedModel)
    return SamplerTap(model, "fp32", prompt=3 * len(tokens_T) // 4).run(tokens_T, {}).logits
