"""A model cut over ranks: tensor parallelism with sequence parallelism by a plan (DTensor), all else by FSDP2.

Several copies are cut alike (HSDP); FSDP2 sums their gradients, too.

Plans stand in `models.families`, with all else that is particular to an architecture.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.fx.experimental import _config as symbols
from torch.utils._pytree import register_dataclass
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.distributed.ranks import Ranks
from lockstep.errors import InputError
from lockstep.losses.base import Outputs
from lockstep.models.families.registry import family_of, list_tensor_parallel
from lockstep.models.last_layer import read_all

register_dataclass(Outputs)  # FSDP looks for tensors in what a model returns


def require_divisible(config: PreTrainedConfig, tp: int, layout_key: str = "learner.parallel") -> None:
    """Raises ValueError if a model cannot be cut over so many tensor-parallel ranks.

    Args:
        config: Configuration of the model.
        tp: Number of ranks.
        layout_key: Key of the recipe that says it.
    """
    if tp == 1:
        return
    parallel = family_of(config).tensor_parallel
    if parallel is None:
        raise InputError(
            f"{layout_key}.tp is {tp}, but a {config.model_type} has no plan for that; use dp and cp, "
            f"or a model of these families: {list_tensor_parallel()}"
        )
    fields = config.get_text_config().to_dict()
    for name in parallel.divided_fields:
        if fields[name] % tp:
            raise InputError(
                f"{layout_key}.tp is {tp}, but the model's {name} ({fields[name]}) is no multiple of it; lower it"
            )


def parallelize(model: nn.Module, lm: PreTrainedModel, ranks: Ranks, offload: bool) -> None:
    """Cuts a head of `models.heads` and the network in it, in place, before it has weights.

    Args:
        model: The head.
        lm: Its network, with or without a vocabulary head.
        ranks: Those that hold it together.
        offload: Keep what each rank holds in the host's memory.
    """
    if ranks.mesh is None:
        return
    if ranks.size("tp") > 1:
        parallel = family_of(lm.config).tensor_parallel
        assert parallel is not None, "a model without a plan is refused before it is opened"
        parallelize_module(lm.base_model, ranks.mesh["tp"], parallel.plan())
        _cut_head(lm, ranks.mesh["tp"])
    if ranks.size("dp_replicate") * ranks.size("dp") * ranks.size("cp") == 1:
        return
    mesh = _fsdp_mesh(ranks.mesh)
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    for module in [*layers(lm), model]:
        fully_shard(module, mesh=mesh, offload_policy=policy)
        assert isinstance(module, FSDPModule)
        # Gradients are summed here, and divided once by the count of what is active.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _fsdp_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The ranks that one copy is cut over; with several copies (HSDP), theirs before them."""
    cut = mesh["dp", "cp"]._flatten("dp_cp")
    return cut if mesh["dp_replicate"].size() == 1 else DeviceMesh._concatenate([mesh["dp_replicate"], cut])


def compile_layers(lm: PreTrainedModel, backend: str = "inductor") -> None:
    """Compiles each layer, once for batches of all sizes: whole, where `attention` can be a node of its graph.

    Args:
        lm: The network; in place, so that names stay what they are. Cut it and checkpoint it afterwards.
        backend: Backend of `torch.compile`.

    Raises:
        ValueError: If there is no compiler that inductor could hand its code to.
    """
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise InputError("learner.compile needs a C++ compiler; install g++, name another one in CXX, or leave it out")
    read_all(lm)
    symbols.use_duck_shape = False  # numbers that are equal in the first batch, of tokens and cells, are not in others
    for layer in layers(lm):
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)


def checkpoint_layers(blocks: Iterable[nn.Module]) -> None:
    """Checkpoints each layer: it keeps its inputs alone, and is computed again for its gradient."""
    for layer in blocks:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def layers(lm: PreTrainedModel) -> list[nn.Module]:
    """The layers of a decoder, as `transformers` names what must not be cut apart."""
    return [module for module in lm.modules() if type(module).__name__ in (lm._no_split_modules or ())]


def _cut_head(lm: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Cuts a vocabulary head as the embedding is; tied to it, it is the embedding's matrix."""
    head = lm.get_output_embeddings()
    if head is None:
        return
    if lm.config.get_text_config().tie_word_embeddings:
        head.weight = lm.get_input_embeddings().weight
    else:
        parallelize_module(head, mesh, ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1)))
