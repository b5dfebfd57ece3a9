"""Reads tensors back from vLLM's model, under the learner's names.

vLLM fuses matrices that are used together, and on a CPU keeps only a packed form of them. Such a
matrix is read through its kernel: a product with a column of the identity gives that column,
exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from lockstep.samplers.vllm.landings import (
    LandingSurvey,
    StridedView,
    WeightLanding,
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
        landings: All views on this rank that hold a part of it.
        own: If ranks hold different parts, the views whose part no earlier rank holds; None: each
            rank holds all of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    landings: tuple[WeightLanding, ...]
    own: tuple[WeightLanding, ...] | None

    @property
    def has_packed_part(self) -> bool:
        """True if a kernel has packed some of it."""
        return any(is_packed(landing) for landing in self.landings)

    def compute_fingerprint(self) -> PendingFingerprint:
        """Computes the fingerprint of the tensor, which must not be packed."""
        return start_fingerprint(self.read_tensor())

    def column_fingerprint(self) -> int:
        """Fingerprint of the columns that kernels use; see `column_fingerprint`."""
        if self.own is not None or not all(
            self._has_straight_rows(landing) for landing in self.landings
        ):
            return column_fingerprint(self.read_tensor())
        columns = pick_columns(self.shape[1])
        whole = torch.empty(self.shape[0], len(columns), dtype=self.dtype)
        for landing in self.landings:
            rows = landing.source.size[0]
            start = landing.source.offset // self.shape[1]
            first = landing.target.offset // landing.shape[1]
            whole[start : start + rows] = _compute_columns(landing, columns)[first : first + rows]
        return fingerprint_tensor(whole)

    def read_tensor(self) -> Tensor:
        """The full tensor, as this rank computes with it; collective if it is sharded."""
        device = get_tp_group().device
        if self.own is None:
            return _copy_landings(
                self.landings, torch.empty(self.shape, dtype=self.dtype, device=device)
            )
        whole = _copy_landings(self.own, torch.zeros(self.shape, dtype=self.dtype, device=device))
        # All ranks but one have 0 for each byte, so the sum has that rank's bits, also of NaN and
        # −0.
        dist.all_reduce(whole.view(-1).view(torch.uint8), group=get_tp_group().device_group)
        return _copy_landings(
            self.landings, whole
        )  # may differ in a part that an earlier rank has, too

    def _has_straight_rows(self, landing: WeightLanding) -> bool:
        """True if rows of the tensor are rows of a packed parameter."""
        rows = landing.source.stride == (self.shape[-1], 1) and landing.target.stride == (
            landing.shape[-1],
            1,
        )
        return (
            rows
            and is_packed(landing)
            and landing.shape[-1] == self.shape[-1] == landing.source.size[-1]
        )


def find_readable_weights(
    model: nn.Module, landings: LandingSurvey, network: PreTrainedModel, dtype: torch.dtype
) -> list[ReadableWeight]:
    """The learner's sent tensors, and its tied head, which is not sent, as in vLLM's model.

    Collective over the tensor-parallel ranks.

    Raises:
        InputError: If a tensor cannot be read back.
    """
    shares = _gather_shares(landings)
    found = [
        ReadableWeight(
            name,
            tuple(tensor.shape),
            dtype,
            *_choose_landings(name, tensor, landings, shares, network),
        )
        for name, tensor in find_sent_tensors(network).items()
    ]
    return [*found, *_read_tied_head(model, network, {one.name: one for one in found})]


def find_tied_names(network: PreTrainedModel) -> dict[str, str]:
    """Maps the name of a tied head, which is not sent, to the embedding's; empty if untied."""
    names = {id(module): name for name, module in network.named_modules()}
    head = network.get_output_embeddings()
    embedding = network.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return {}
    return {f"{names[id(head)]}.weight": f"{names[id(embedding)]}.weight"}


def is_packed(landing: WeightLanding) -> bool:
    """True if a CPU kernel has packed the matrix."""
    matrix = (
        isinstance(landing.layer, LinearBase | ParallelLMHead) and landing.parameter == "weight"
    )
    return matrix and len(landing.shape) == 2 and current_platform.is_cpu()


LandingShares = list[dict[str, tuple[StridedView, ...]]]
"""The views of each tensor that each tensor-parallel rank holds."""


def _gather_shares(landings: LandingSurvey) -> LandingShares:
    own = {name: tuple(place.source for place in places) for name, places in landings.of.items()}
    shares: list[Any] = [own] * get_tp_group().world_size
    if len(shares) > 1:
        dist.all_gather_object(shares, own, group=get_tp_group().cpu_group)
    return shares


def _choose_landings(
    name: str,
    tensor: Tensor,
    landings: LandingSurvey,
    shares: LandingShares,
    network: PreTrainedModel,
) -> tuple[tuple[WeightLanding, ...], tuple[WeightLanding, ...] | None]:
    """`landings` and `own` of a `ReadableWeight`; raises InputError if the tensor cannot be read
    back.
    """
    places = landings.of[name]
    rank = get_tp_group().rank_in_group
    is_cut = any(set(share[name]) != set(shares[0][name]) for share in shares)
    if is_cut:
        stretches = {stretch for share in shares for stretch in share[name]}
    else:
        stretches = [p.source for p in places]
    if sum(torch.Size(stretch.size).numel() for stretch in stretches) != tensor.numel():
        kind = type(network.get_submodule(name.rpartition(".")[0])).__name__
        raise InputError(
            f"vLLM stores {name} of {kind} in a different form than it is sent, {_INSTEAD}"
        )
    for place in places:
        kind = type(place.layer).__name__
        if (place.layer, place.parameter) in landings.changed:
            raise InputError(f"vLLM's {kind} does not compute with {name} itself, {_INSTEAD}")
        ordered = find_packing(place.layer, place.parameter) is not None
        if (
            not is_packed(place)
            and not ordered
            and tuple(_read_parameter(place).shape) != place.shape
        ):
            raise InputError(f"vLLM's {kind} keeps {name} in an unreadable form, {_INSTEAD}")
    before = {stretch for share in shares[:rank] for stretch in share[name]}
    return places, tuple(
        place for place in places if place.source not in before
    ) if is_cut else None


def _read_tied_head(
    model: nn.Module, network: PreTrainedModel, sent: dict[str, ReadableWeight]
) -> Iterator[ReadableWeight]:
    heads = [layer for layer in model.modules() if isinstance(layer, ParallelLMHead)]
    for name, other in find_tied_names(network).items():
        for head in heads:
            whole = sent[other].landings
            own = sent[other].own
            places = tuple(replace(place, layer=head) for place in whole)
            if own is None:
                owned = None
            else:
                owned = tuple(replace(place, layer=head) for place in own)
            yield replace(sent[other], name=name, landings=places, own=owned)


def _copy_landings(landings: Sequence[WeightLanding], whole: Tensor) -> Tensor:
    plain = dict[tuple[int, str], Tensor]()  # one tensor's experts are in one parameter
    for landing in landings:
        key = id(landing.layer), landing.parameter
        if key not in plain:
            plain[key] = _unpack_parameter(landing)
        landing.source.apply_to(whole).copy_(landing.target.apply_to(plain[key]))
    return whole


def _read_parameter(landing: WeightLanding) -> Tensor:
    own = dict(landing.layer.named_parameters(recurse=False)) | dict(
        landing.layer.named_buffers(recurse=False)
    )
    return own[landing.parameter].detach()


def _unpack_parameter(landing: WeightLanding) -> Tensor:
    """The full parameter as it was before packing."""
    if (pack := find_packing(landing.layer, landing.parameter)) is not None:
        return restore_loaded_order(
            pack, landing.parameter, _read_parameter(landing), landing.shape
        )
    if not is_packed(landing):
        return _read_parameter(landing).contiguous()
    width = landing.shape[1]
    starts = range(0, width, _COLUMNS_AT_ONCE)
    return torch.cat(
        [
            _compute_columns(landing, range(width)[start : start + _COLUMNS_AT_ONCE])
            for start in starts
        ],
        1,
    )


def _compute_columns(landing: WeightLanding, columns: Sequence[int]) -> Tensor:
    """Columns that the layer's kernel computes with; 0 and −0 are equal there."""
    layer: Any = landing.layer
    units = torch.zeros(len(columns), landing.shape[1], dtype=_read_parameter(landing).dtype)
    units.scatter_(1, torch.tensor(columns)[:, None], 1.0)
    return layer.quant_method.apply(layer, units).T.contiguous() + 0.0
