"""One rank's pieces of a Megatron learner.

A fused parameter, such as QKV, holds several tensors of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedConfig

from lockstep.distributed.ranks import RankMesh
from lockstep.learners.megatron.model import PipelineStage
from lockstep.learners.pieces import ParameterPiece, TensorBox
from lockstep.models.heads import canonical_name
from lockstep.models.megatron import ParameterSlice, list_slices, view_unchanged
from lockstep.weight_sync.outgoing import choose_sent_dtype


@dataclass(frozen=True, eq=False)
class MegatronPiece(ParameterPiece):
    """A piece of a parameter of one stage.

    Attributes:
        dim: Dimension along which tensor-parallel ranks shard its tensors; None: replicated.
        partial: Whether a tensor-parallel rank has only a part of its gradient, which is then
            summed over them.
        ranks: Ranks that hold the model together.
    """

    dim: int | None
    partial: bool
    ranks: RankMesh

    @property
    def cut_over(self) -> frozenset[str]:
        return frozenset(("pp",) if self.dim is None else ("pp", "tp"))

    def gather_tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        for box in self.boxes:
            own = box.read_box(self.local)
            yield (
                canonical_name(box.name),
                self._gather_full(box, own.to(choose_sent_dtype(own, dtype))),
            )

    def read_gradient(self) -> Tensor:
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.local)
        return gradient[: len(self.local)]

    def _gather_full(self, box: TensorBox, own: Tensor) -> Tensor:
        group = self.ranks.group("tp")
        shares = self.ranks.size("tp")
        if self.dim is None or group is None:
            return own
        share = list(box.whole)
        share[self.dim] = ceil(box.whole[self.dim] / shares)
        filled = own.new_zeros(share)
        filled.narrow(self.dim, 0, own.shape[self.dim]).copy_(own)
        parts = [torch.empty_like(filled) for _ in range(shares)]
        dist.all_gather(parts, filled, group=group)
        return torch.cat(parts, self.dim).narrow(self.dim, 0, box.whole[self.dim])


def list_pieces(
    stage: PipelineStage, config: PreTrainedConfig, base: str, ranks: RankMesh
) -> Iterator[MegatronPiece]:
    """Yields the pieces of all parameters of a stage, except a tied head's copy of the embedding.

    Args:
        stage: The stage.
        config: Configuration of the Hugging Face model.
        base: Prefix of the names of a backbone's tensors.
        ranks: Ranks that hold the model together.
    """
    for name, parameter in stage.named_parameters():
        own = name.removeprefix("gpt.")
        if own == name:  # of a value head
            found: tuple[ParameterSlice, ...] = (ParameterSlice(name, None, view_unchanged),)
        elif own == "output_layer.weight" and stage.tied:
            found = ()
        else:
            known = list_slices(own, config, stage.first_layer)
            above = "lm." if own == "output_layer.weight" else base
            found = tuple(
                ParameterSlice(f"{above}{part.name}", part.dim, part.view) for part in known
            )
        if not found:
            continue
        local = parameter.detach()
        of_vocabulary = own in ("output_layer.weight", "embedding.word_embeddings.weight")
        if of_vocabulary:
            local = local[: stage.own_rows]
        boxes = list[TensorBox]()
        for part in found:
            box = _build_box(part, local, ranks)
            if of_vocabulary:
                whole = stage.vocabulary, *box.whole[1:]
                box = replace(box, whole=whole, offset=(stage.first_row, 0))
            boxes.append(box)
        partial = own.endswith(("q_layernorm.weight", "k_layernorm.weight"))
        yield MegatronPiece(name, parameter, local, tuple(boxes), found[0].dim, partial, ranks)


def _build_box(part: ParameterSlice, local: Tensor, ranks: RankMesh) -> TensorBox:
    rest = tuple(local.shape[1:])
    shape = (part.view(local).numel() // prod(rest), *rest)
    whole = list(shape)
    offset = [0] * len(shape)
    if part.dim is not None:
        whole[part.dim] *= ranks.size("tp")
        offset[part.dim] = shape[part.dim] * ranks.index("tp")
    return TensorBox(part.name, tuple(whole), tuple(offset), shape, part.view)
