"""Starts a learner's model on a rank: reads it in full or, if sharded, box by box."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.config import LearnerSection
from lockstep.core.types import HeadKind
from lockstep.distributed.ranks import RankMesh
from lockstep.learners.boxes import BoxReader
from lockstep.learners.torch.pieces import TorchPiece
from lockstep.models import lora
from lockstep.models.families.registry import find_family
from lockstep.models.folder import build_skeleton, read_config
from lockstep.models.heads import LogitsHead, ValueHead, name_in_folder, scores_tokens
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.models.parallelize import (
    checkpoint_layers,
    compile_layers,
    list_layers,
    parallelize_model,
)
from lockstep.models.weight_files import check_weights, require_finite_tensor, weight_files


def build_model(
    folder: str,
    head: HeadKind,
    seed: int,
    section: LearnerSection,
    ranks: RankMesh,
    device: torch.device,
) -> LogitsHead | ValueHead:
    """Builds a head of `models.heads` on a folder's backbone, on its device, sharded over ranks.

    If the family `reads_boxes`, no rank ever holds the full model; otherwise every rank reads it in
    full, then shards it.

    Args:
        folder: Folder of the model.
        head: Output of the model.
        seed: Seed of a value head.
        section: Section of the recipe.
        ranks: Ranks that hold the model together.
        device: Device of the computation.
    """
    config = read_config(folder, headless=not scores_tokens(head))
    if ranks.mesh is None or not find_family(config).reads_boxes:
        if scores_tokens(head):
            network = load_causal_lm(folder)
        else:
            network = load_backbone(folder)
        if scores_tokens(head):
            model = LogitsHead(network, ranks)
        else:
            model = ValueHead(network, seed, ranks, head)
        if isinstance(model, ValueHead):
            _load_value_unit(model, network, folder)
        if section.lora is not None:
            lora.add_adapters(network, section.lora)
            model.load_state_dict(lora.first_weights(model, seed), strict=False)
        model.to(device)
        _shard_model(model, network, section, ranks)
        return model
    whole = build_skeleton(config, folder)
    check_weights(folder, whole, headless=not scores_tokens(head))
    network = whole if scores_tokens(head) else whole.base_model
    assert isinstance(network, PreTrainedModel), (
        "a causal language model of transformers has its own backbone"
    )
    with torch.device("meta"):
        if scores_tokens(head):
            model = LogitsHead(network, ranks, products=True)
        else:
            model = ValueHead(network, seed, ranks, head)
        if section.lora is not None:
            lora.add_adapters(network, section.lora)
    _shard_model(model, network, section, ranks)
    model.to_empty(device="cpu" if section.cpu_offload else device)
    _fill_weights(model, network, folder, lora.first_weights(model, seed))
    return model


def _shard_model(
    model: nn.Module, network: PreTrainedModel, section: LearnerSection, ranks: RankMesh
) -> None:
    if section.compile:
        compile_layers(network)
    if section.activation_checkpointing:
        checkpoint_layers(list_layers(network))
    parallelize_model(model, network, ranks, section)


@torch.no_grad()
def _load_value_unit(model: ValueHead, network: PreTrainedModel, folder: str) -> None:
    """Loads the unit of a value head from a folder, if it has one, such as a reward model's."""
    with BoxReader(weight_files(Path(folder))) as saved:
        for name in model.first_weights():
            if (there := name_in_folder(network.base_model_prefix, name)) in saved:
                model.get_parameter(name).copy_(saved.read_tensor(there))


@torch.no_grad()
def _fill_weights(
    model: LogitsHead | ValueHead,
    network: PreTrainedModel,
    folder: str,
    adapters: Mapping[str, Tensor],
) -> None:
    """Fills empty memory from the folder's files, and buffers from the configuration."""
    network.tie_weights()
    for module in network.modules():
        if any(True for _ in module.buffers(recurse=False)):
            network._init_weights(module)
    made = {**adapters, **(model.first_weights() if isinstance(model, ValueHead) else {})}
    with BoxReader(weight_files(Path(folder))) as saved:
        for name, parameter in model.named_parameters():
            piece = TorchPiece.from_parameter(name, parameter)
            if name in made and name_in_folder(network.base_model_prefix, name) not in saved:
                (box,) = piece.boxes
                index = tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
                piece.local.copy_(made[name][index])
            else:
                saved.fill_piece(
                    piece.local, piece, partial(name_in_folder, network.base_model_prefix)
                )
                require_finite_tensor(folder, name, piece.local)
