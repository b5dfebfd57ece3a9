"""Starts a Megatron learner on a rank: builds its stage without weights, then reads them by box."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from lockstep.config import LearnerSection, Optimizer
from lockstep.core.types import HeadKind
from lockstep.distributed.ranks import RankMesh
from lockstep.learners.boxes import BoxReader
from lockstep.learners.megatron.learner import MegatronLearner
from lockstep.learners.megatron.model import PipelineStage, join_groups
from lockstep.learners.megatron.on_cpu import compute_on_cpu
from lockstep.learners.megatron.pieces import list_pieces
from lockstep.models.device import resolve_device
from lockstep.models.folder import build_skeleton, read_config
from lockstep.models.heads import name_in_folder, scores_tokens
from lockstep.models.parallelize import checkpoint_layers
from lockstep.models.precision import TORCH_TYPES
from lockstep.models.weight_files import check_weights, require_finite_tensor, weight_files


def start_learner(
    folder: str,
    head: HeadKind,
    seed: int,
    section: LearnerSection,
    optimizer: Optimizer | None,
    ranks: RankMesh,
) -> MegatronLearner:
    """A learner of a folder's model; no rank holds more of the model than it computes with.

    Args:
        folder: Folder of the model.
        head: Output of the model.
        seed: Seed of a value head.
        section: Section of the recipe.
        optimizer: Settings of the optimizer; None for a scorer.
        ranks: Ranks that hold the model together.
    """
    # required by Megatron's overlapping reductions
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    device = resolve_device(section.device)
    network = build_skeleton(read_config(folder, headless=not scores_tokens(head)), folder)
    check_weights(folder, network, headless=not scores_tokens(head))
    if device.type == "cpu":
        compute_on_cpu()
    join_groups(ranks)
    sent = TORCH_TYPES[section.dtype]
    stage = PipelineStage(network, head, seed, sent, ranks).to(device)
    if section.activation_checkpointing:
        checkpoint_layers(stage.gpt.decoder.layers)
    backbone = network.base_model_prefix
    base = f"lm.{backbone}." if scores_tokens(head) else "backbone."
    pieces = list(list_pieces(stage, network.config, base, ranks))
    with BoxReader(weight_files(Path(folder))) as saved, torch.no_grad():
        for piece in pieces:
            if not piece.name.startswith("value.") or name_in_folder(backbone, piece.name) in saved:
                saved.fill_piece(piece.local, piece, partial(name_in_folder, backbone))
                require_finite_tensor(folder, piece.name, piece.local)
    return MegatronLearner(stage, pieces, base, section, optimizer, ranks)
