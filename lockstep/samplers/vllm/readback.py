"""Reads tensors back from vLLM's model, under the learner's names.

vLLM fuses matrices that are used together, and on a CPU keeps only a packed form of them. Such a
matrix is read through its kernel: a product with a column of the identity gives that column,
exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform

from lockstep.core.errors import InputError
from lockstep.samplers.vllm.experts import find_packing, restore_loaded_order
from lockstep.samplers.vllm.load_trace import (
    LoadTrace,
    StridedView,
    WeightCopy,
    find_sent_tensors,
)
from lockstep.weight_sync.fingerprints import (
    PendingFingerprint,
    column_fingerprint,
    fingerprint_tensor,
    pick_columns,
    start_fingerprint,
)

_COLUMNS_AT_ONCE = 512
_INSTEAD = "so weight syncs cannot be verified; use sampler=torch"


@dataclass(frozen=True)
class ReadableWeight:
    """A learner's tensor in vLLM's layers.

    Attributes:
        name: Name in the learner.
        shape: Shape in the learner.
        dtype: Type of sent weights.
        copies: All copies of its parts on this rank.
        own: If it is sharded, the copies of parts that no earlier rank holds; None: each rank holds
            all of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    copies: tuple[WeightCopy, ...]
    own: tuple[WeightCopy, ...] | None

    @property
    def has_packed_part(self) -> bool:
        """True if a kernel has packed some of it."""
        return any(map(is_packed, self.copies))

    def compute_fingerprint(self) -> PendingFingerprint:
        """Computes the fingerprint of the tensor, which must not be packed."""
        return start_fingerprint(self.read_tensor())

    def column_fingerprint(self) -> int:
        """Fingerprint of the columns that kernels use; see `column_fingerprint`."""
        if self.own is not None or not all(map(self._has_straight_rows, self.copies)):
            return column_fingerprint(self.read_tensor())
        columns = pick_columns(self.shape[1])
        sampled = torch.empty(self.shape[0], len(columns), dtype=self.dtype)
        for copy in self.copies:
            rows = copy.source.size[0]
            start = copy.source.offset // self.shape[1]
            first = copy.target.offset // copy.shape[1]
            sampled[start : start + rows] = _compute_columns(copy, columns)[first : first + rows]
        return fingerprint_tensor(sampled)

    def read_tensor(self) -> Tensor:
        """The full tensor, as this rank computes with it; collective if it is sharded."""
        device = get_tp_group().device
        if self.own is None:
            return _gather_copies(
                self.copies, torch.empty(self.shape, dtype=self.dtype, device=device)
            )
        tensor = _gather_copies(self.own, torch.zeros(self.shape, dtype=self.dtype, device=device))
        # All ranks but one have 0 for each byte, so the sum has that rank's bits, also of NaN and
        # −0.
        dist.all_reduce(tensor.view(-1).view(torch.uint8), group=get_tp_group().device_group)
        # this rank's copy of a part may differ from an earlier rank's
        return _gather_copies(self.copies, tensor)

    def _has_straight_rows(self, copy: WeightCopy) -> bool:
        """True if rows of the tensor are rows of a packed parameter."""
        return (
            copy.source.stride == (self.shape[-1], 1)
            and copy.target.stride == (copy.shape[-1], 1)
            and is_packed(copy)
            and copy.shape[-1] == self.shape[-1] == copy.source.size[-1]
        )


def find_readable_weights(
    model: nn.Module, trace: LoadTrace, network: PreTrainedModel, dtype: torch.dtype
) -> list[ReadableWeight]:
    """The learner's sent tensors, and its tied head, which is not sent, as in vLLM's model.

    Collective over the tensor-parallel ranks.

    Raises:
        InputError: If a tensor cannot be read back.
    """
    own = dict[str, tuple[StridedView, ...]]()
    for name, copies in trace.copies.items():
        own[name] = tuple(copy.source for copy in copies)
    views: list[Any] = [own] * get_tp_group().world_size
    if len(views) > 1:
        dist.all_gather_object(views, own, group=get_tp_group().cpu_group)
    found = dict[str, ReadableWeight]()
    for name, tensor in find_sent_tensors(network).items():
        chosen = _choose_copies(name, tensor, trace, views, network)
        found[name] = ReadableWeight(name, tuple(tensor.shape), dtype, *chosen)
    return [*found.values(), *_read_tied_head(model, network, found)]


def find_tied_names(network: PreTrainedModel) -> dict[str, str]:
    """Maps the name of a tied head, which is not sent, to the embedding's; empty if untied."""
    names = {id(module): name for name, module in network.named_modules()}
    head = network.get_output_embeddings()
    embedding = network.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return {}
    return {f"{names[id(head)]}.weight": f"{names[id(embedding)]}.weight"}


def is_packed(copy: WeightCopy) -> bool:
    """True if a CPU kernel has packed the matrix."""
    matrix = isinstance(copy.layer, LinearBase | ParallelLMHead) and copy.parameter == "weight"
    return matrix and len(copy.shape) == 2 and current_platform.is_cpu()


RankViews = list[dict[str, tuple[StridedView, ...]]]
"""The views of each tensor that each tensor-parallel rank holds."""


def _choose_copies(
    name: str,
    tensor: Tensor,
    trace: LoadTrace,
    views: RankViews,
    network: PreTrainedModel,
) -> tuple[tuple[WeightCopy, ...], tuple[WeightCopy, ...] | None]:
    """`copies` and `own` of a `ReadableWeight`; raises InputError if the tensor cannot be read
    back.
    """
    copies = trace.copies[name]
    rank = get_tp_group().rank_in_group
    by_rank = [own[name] for own in views]
    is_sharded = any(set(own) != set(by_rank[0]) for own in by_rank)
    if is_sharded:
        held = set(chain.from_iterable(by_rank))
    else:
        held = by_rank[rank]
    if sum(torch.Size(view.size).numel() for view in held) != tensor.numel():
        kind = type(network.get_submodule(name.rpartition(".")[0])).__name__
        raise InputError(
            f"vLLM stores {name} of {kind} in a different form than it is sent, {_INSTEAD}"
        )
    for copy in copies:
        kind = type(copy.layer).__name__
        if (copy.layer, copy.parameter) in trace.changed:
            raise InputError(f"vLLM's {kind} does not compute with {name} itself, {_INSTEAD}")
        is_ordered = find_packing(copy.layer, copy.parameter) is not None
        if (
            not is_packed(copy)
            and not is_ordered
            and tuple(_read_parameter(copy).shape) != copy.shape
        ):
            raise InputError(f"vLLM's {kind} keeps {name} in an unreadable form, {_INSTEAD}")
    if not is_sharded:
        return copies, None
    earlier = set(chain.from_iterable(by_rank[:rank]))
    return copies, tuple(copy for copy in copies if copy.source not in earlier)


def _read_tied_head(
    model: nn.Module, network: PreTrainedModel, sent: dict[str, ReadableWeight]
) -> Iterator[ReadableWeight]:
    heads = [layer for layer in model.modules() if isinstance(layer, ParallelLMHead)]
    for name, other in find_tied_names(network).items():
        for head in heads:
            copies = tuple(replace(copy, layer=head) for copy in sent[other].copies)
            own = sent[other].own
            if own is not None:
                own = tuple(replace(copy, layer=head) for copy in own)
            yield replace(sent[other], name=name, copies=copies, own=own)


def _gather_copies(copies: Sequence[WeightCopy], tensor: Tensor) -> Tensor:
    plain = dict[tuple[int, str], Tensor]()  # one tensor's experts are in one parameter
    for copy in copies:
        key = id(copy.layer), copy.parameter
        if key not in plain:
            plain[key] = _unpack_parameter(copy)
        copy.source.apply_to(tensor).copy_(copy.target.apply_to(plain[key]))
    return tensor


def _read_parameter(copy: WeightCopy) -> Tensor:
    own = dict(copy.layer.named_parameters(recurse=False)) | dict(
        copy.layer.named_buffers(recurse=False)
    )
    return own[copy.parameter].detach()


def _unpack_parameter(copy: WeightCopy) -> Tensor:
    """The full parameter as it was before packing."""
    if (pack := find_packing(copy.layer, copy.parameter)) is not None:
        return restore_loaded_order(pack, copy.parameter, _read_parameter(copy), copy.shape)
    if not is_packed(copy):
        return _read_parameter(copy).contiguous()
    width = copy.shape[1]
    starts = range(0, width, _COLUMNS_AT_ONCE)
    return torch.cat(
        [
            _compute_columns(copy, range(width)[start : start + _COLUMNS_AT_ONCE])
            for start in starts
        ],
        1,
    )


def _compute_columns(copy: WeightCopy, columns: Sequence[int]) -> Tensor:
    """Columns that the layer's kernel computes with; 0 and −0 are equal there."""
    layer: Any = copy.layer
    units = torch.zeros(len(columns), copy.shape[1], dtype=_read_parameter(copy).dtype)
    units.scatter_(1, torch.tensor(columns)[:, None], 1.0)
    return layer.quant_method.apply(layer, units).T.contiguous() + 0.0
