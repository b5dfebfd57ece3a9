"""How a Megatron learner comes to be on a rank: its stage without weights, then box by box from a folder's files."""

from __future__ import annotations

from pathlib import Path

import torch

from lockstep.distributed.ranks import Ranks
from lockstep.learners.boxes import Boxes
from lockstep.learners.megatron.learner import MegatronLearner
from lockstep.learners.megatron.model import Stage, join_groups
from lockstep.learners.megatron.on_cpu import compute_on_cpu
from lockstep.learners.megatron.pieces import pieces_of
from lockstep.learners.pieces import Box
from lockstep.learners.rank import resolve_device
from lockstep.models.folder import check_weights, read_config, skeleton, weight_files
from lockstep.models.heads import Head, canonical
from lockstep.models.parallelize import checkpoint_layers
from lockstep.recipe import LearnerSection, Optimizer


def started(
    folder: str, head: Head, seed: int, section: LearnerSection, optimizer: Optimizer | None, ranks: Ranks
) -> MegatronLearner:
    """A learner of a folder's model; no rank ever holds more of that than it computes with.

    Args:
        folder: Of the model.
        head: Which one.
        seed: Of a value head.
        section: Of the recipe.
        optimizer: None for a model that is only scored with.
        ranks: Those that hold the model together.
    """
    config, device = read_config(folder), resolve_device(section.device)
    network = skeleton(config, folder)
    check_weights(folder, network)
    if device.type == "cpu":
        compute_on_cpu()
    join_groups(ranks)
    stage = Stage(config, head, seed, ranks).to(device)
    if section.activation_checkpointing:
        checkpoint_layers(stage.gpt.decoder.layers)
    backbone = network.base_model_prefix
    base = f"lm.{backbone}." if head == "logits" else "backbone."
    pieces = list(pieces_of(stage, config, base, ranks))
    boxes = [(piece.local, box) for piece in pieces for box in piece.boxes if not box.name.startswith("value.")]
    with Boxes(weight_files(Path(folder))) as saved, torch.no_grad():
        for local, box in boxes:
            box.write(local, saved.read(_in_folder(box, backbone), box.offset, box.shape))
    return MegatronLearner(stage, pieces, base, section, optimizer, ranks)


def _in_folder(box: Box, backbone: str) -> str:
    """A tensor's name in the files of the causal language model."""
    if box.name.startswith("backbone."):
        return f"{backbone}.{box.name.removeprefix('backbone.')}"
    return canonical(box.name)
