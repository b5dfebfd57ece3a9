"""Shards a model: tensor and sequence parallelism by a plan (DTensor), the rest by FSDP2.

With several replicas (HSDP), FSDP2 also sums gradients over them.

In 16 bits, a layer's linear maps are gathered in the type to which autocast would cast them: that
halves the traffic, keeps no copy, and changes no number. Other parameters of a layer must stay
fp32: if they are vectors, such as norms, every rank holds full copies and the learner sums their
gradients; otherwise the layer is gathered in fp32, as is everything outside of layers.

Plans are in `models.families`, with everything else specific to an architecture.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.fx.experimental import _config as symbols
from torch.utils._pytree import register_dataclass
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.config import LearnerSection
from lockstep.core.errors import InputError
from lockstep.distributed.ranks import RankMesh
from lockstep.losses.base import Outputs
from lockstep.models.families.registry import find_family, list_tensor_parallel
from lockstep.models.last_layer import compute_all_states
from lockstep.models.precision import TORCH_TYPES

register_dataclass(Outputs)  # FSDP looks for tensors in a model's outputs

CUT = "dp_cp"
"""Name of the mesh dimension over which FSDP shards."""


def require_divisible(
    config: PreTrainedConfig, tp: int, layout_key: str = "learner.parallel"
) -> None:
    """Raises ValueError if a model cannot be sharded over this number of tensor-parallel ranks.

    Args:
        config: Configuration of the model.
        tp: Number of tensor-parallel ranks.
        layout_key: Key of the layout in the recipe, for messages.
    """
    if tp == 1:
        return
    parallel = find_family(config).tensor_parallel
    if parallel is None:
        raise InputError(
            f"{layout_key}.tp is {tp}, but a {config.model_type} does not support tensor "
            f"parallelism; use dp and cp, or a model of these families: {list_tensor_parallel()}"
        )
    fields = config.get_text_config().to_dict()
    for name in parallel.divided_fields:
        if fields[name] % tp:
            raise InputError(
                f"{layout_key}.tp is {tp}, but the model's {name} ({fields[name]}) is not a "
                "multiple of it; lower it"
            )


def parallelize_model(
    model: nn.Module, lm: PreTrainedModel, ranks: RankMesh, section: LearnerSection
) -> None:
    """Shards a head of `models.heads` and its network, in place.

    Args:
        model: The head; on the meta device, or with weights.
        lm: The head's network, with or without a vocabulary head.
        ranks: Ranks that hold the model together.
        section: Computation type, and whether shards are offloaded to the host (`cpu_offload`).
    """
    if ranks.mesh is None:
        return
    if ranks.size("tp") > 1:
        parallel = find_family(lm.config).tensor_parallel
        assert parallel is not None, "a model without a plan is refused before it is opened"
        parallelize_module(lm.base_model, ranks.mesh["tp"], parallel.plan())
        _cut_head(lm, ranks.mesh["tp"])
    if ranks.size("dp_replicate") * ranks.size("dp") * ranks.size("cp") == 1:
        return
    mesh = _fsdp_mesh(ranks.mesh)
    if section.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    else:
        offload = OffloadPolicy()
    narrow = MixedPrecisionPolicy(
        TORCH_TYPES[section.dtype], torch.float32, cast_forward_inputs=False
    )
    for module in [*list_layers(lm), model]:
        if module is not model and gathers_half(section):
            vectors = find_vectors(module)
        else:
            vectors = None
        if vectors is None:
            fully_shard(module, mesh=mesh, offload_policy=offload)
        else:
            fully_shard(
                module, mesh=mesh, offload_policy=offload, mp_policy=narrow, ignored_params=vectors
            )
        assert isinstance(module, FSDPModule)
        # FSDP sums gradients; the learner divides them once by the loss's denominator.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def gathers_half(section: LearnerSection) -> bool:
    """True if linear maps are gathered in 16 bits.

    False with `cpu_offload`: FSDP moves no unsharded vectors.
    """
    return section.is_half and not section.cpu_offload


def find_vectors(layer: nn.Module) -> set[nn.Parameter] | None:
    """A layer's parameters outside its linear maps; None unless all are vectors.

    Autocast casts only the linear maps.
    """
    others = set(layer.parameters())
    for module in layer.modules():
        if type(module) is nn.Linear:
            others.difference_update(module.parameters(recurse=False))
    if all(parameter.dim() <= 1 for parameter in others):
        return others
    return None


def abandon_pass(model: nn.Module) -> None:
    """Frees gathered parameters and gradients that an interrupted pass left in FSDP.

    FSDP has no method for it.
    """
    for group in _iterate_groups(model):
        group.wait_for_unshard()  # weights gathered ahead, now stale
        group.reshard()
        for held in group.fsdp_params:
            held.unsharded_accumulated_grad = None
            if "_unsharded_param" in vars(held):
                held._unsharded_param.grad = None


def take_whole_gradients(
    model: nn.Module, parameters: Iterable[nn.Parameter]
) -> list[torch.Tensor]:
    """Takes the gradients of this rank's last pass, of whole parameters, before FSDP sums them.

    FSDP has no method for it. Parameters that no output depends on have zeros.
    """
    held = dict[nn.Parameter, torch.Tensor | None]()
    for group in _iterate_groups(model):
        for one in group.fsdp_params:
            gradient = one.unsharded_accumulated_grad
            one.unsharded_accumulated_grad = None
            if "_unsharded_param" in vars(one):
                gradient = one._unsharded_param.grad if gradient is None else gradient
                one._unsharded_param.grad = None
            held[one.sharded_param] = gradient
    found = list[torch.Tensor]()
    for parameter in parameters:
        gradient = held.get(parameter, parameter.grad)
        parameter.grad = None
        if gradient is None:
            gradient = torch.zeros(parameter.shape, device=parameter.device)
        found.append(gradient)
    return found


def _iterate_groups(model: nn.Module) -> Iterator[FSDPParamGroup]:
    """FSDP's own records of the parameters that it shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            if group is not None:
                yield group


def _fsdp_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh over which FSDP shards; with replicas (HSDP), their dimension comes first."""
    cut = mesh["dp", "cp"]._flatten(CUT)
    if mesh["dp_replicate"].size() == 1:
        return cut
    return DeviceMesh._concatenate([mesh["dp_replicate"], cut])


def compile_layers(lm: PreTrainedModel, backend: str = "inductor") -> None:
    """Compiles each layer, once for batches of all sizes.

    Compiles full graphs if `attention` can be a graph node.

    Args:
        lm: The network, changed in place so that names stay the same. Shard it and checkpoint its
            layers afterwards.
        backend: Backend of `torch.compile`.

    Raises:
        ValueError: If inductor has no compiler for its code.
    """
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise InputError(
            "learner.compile needs a C++ compiler; install g++, set CXX to a different one, or "
            "leave it out"
        )
    compute_all_states(lm)
    # sizes that happen to be equal in the first batch (tokens, cells) differ in others
    symbols.use_duck_shape = False
    for layer in list_layers(lm):
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)


def checkpoint_layers(blocks: Iterable[nn.Module]) -> None:
    """Applies activation checkpointing to each layer: keeps its inputs, recomputes in backward."""
    for layer in blocks:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def list_layers(lm: PreTrainedModel) -> list[nn.Module]:
    """The layers of a decoder: modules of the classes in `_no_split_modules`."""
    found: list[nn.Module] = []
    for module in lm.modules():
        if type(module).__name__ in (lm._no_split_modules or ()):
            found.append(module)
    return found


def _cut_head(lm: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Shards the vocabulary head like the embedding; a tied head becomes the embedding's matrix."""
    head = lm.get_output_embeddings()
    if head is None:
        return
    if lm.config.get_text_config().tie_word_embeddings:
        head.weight = lm.get_input_embeddings().weight
    else:
        parallelize_module(
            head, mesh, ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1))
        )
