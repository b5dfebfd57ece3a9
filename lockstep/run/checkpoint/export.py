"""`lockstep export`: a checkpoint's model as a Hugging Face folder, or its adapters for peft.

A checkpoint of a run with `learner.lora` holds only adapters; its model is the run's initial model
with the adapters merged in.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from torch import Tensor

from lockstep.algorithms.base import Algorithm
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe, load_run
from lockstep.core.errors import InputError, shorten_text
from lockstep.core.types import HeadKind
from lockstep.learners.boxes import BoxReader, find_written
from lockstep.models.digests import model_files
from lockstep.models.export import FileType, assemble_folder, save_adapter
from lockstep.models.folder import build_skeleton, read_config, require_folder
from lockstep.models.heads import name_in_folder, scores_tokens
from lockstep.models.tokenizer import has_tokenizer
from lockstep.report.card import render_card
from lockstep.report.log import require_run
from lockstep.run.checkpoint.checkpoints import (
    CheckpointStore,
    NoCheckpointError,
    VerifiedCheckpoint,
)
from lockstep.run.folder.files import FRAME
from lockstep.run.folder.identity import list_differences


def export_checkpoint(
    run: Path, out: Path, which: str = "latest", dtype: FileType = "fp32", adapter: bool = False
) -> int:
    """Exports the policy or reward model of a checkpoint, with all files that loading needs.

    These are configuration, tokenizer, chat template, settings and a model card.

    Args:
        run: Folder of the run.
        out: Target folder; must not exist.
        which: `latest`, `best` (by `run.best`), or the number of a step.
        dtype: Type of the written weights.
        adapter: Write only the adapters; otherwise they are written along with the merged model.

    Returns:
        The step of the checkpoint.

    Raises:
        ValueError: `run` is not a run, `out` exists, or the run has no adapters.
        NoCheckpointError: The checkpoint does not exist, or its adapters belong to a different
            initial model than the current one.
    """
    require_run(run)
    if out.exists():
        raise InputError(f"{out} already exists; choose a new folder")
    loaded = load_run(run)
    recipe = loaded.expect_recipe(Algorithm)
    lora = recipe.learner.lora
    trained = recipe.models[0]
    if adapter and lora is None:
        raise InputError(
            f"{run} trained all weights (its recipe has no learner.lora); remove --adapter"
        )
    checkpoint = _choose_checkpoint(CheckpointStore(run / "checkpoints", keep=1, note=print), which)
    is_classifier = not scores_tokens(trained.head)
    network = build_skeleton(read_config(run / FRAME), str(run))
    if not has_tokenizer(run / FRAME):
        raise InputError(f"{run / FRAME} has no tokenizer to export; restore the folder")
    saved = checkpoint.folder / trained.name
    with BoxReader(find_written(saved, "model")) as boxes:
        weights: dict[str, Tensor] = {}
        for name in boxes.list_names():
            weights[name_in_folder(network.base_model_prefix, name)] = boxes.read_tensor(name)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_adapters = None
    if lora is not None:
        base = _first_model(loaded, run)
        save_adapters = partial(save_adapter, weights, network, lora, base, dtype, is_classifier)
        if adapter:
            save_adapters(out)
            return checkpoint.step
        weights = _merge_weights(
            loaded, base, checkpoint, saved, trained.head, network.base_model_prefix
        )
    named = recipe.model.path or recipe.model.from_recipe or "a new model"
    text = render_card(run, recipe.algorithm, Path(named).name, checkpoint.step, is_classifier)
    assemble_folder(run / FRAME, weights, out, dtype, text, is_classifier, save_adapters)
    return checkpoint.step


def _first_model(loaded: LoadedRecipe, run: Path) -> Path:
    """The folder of a run's initial weights."""
    first = loaded.warm_start
    path = fetch_names(loaded).training_recipe.model.path
    if first is not None:
        return first.run_folder / "final"
    if path is None:
        return run / FRAME
    return Path(path)


def _merge_weights(
    loaded: LoadedRecipe,
    base: Path,
    checkpoint: VerifiedCheckpoint,
    saved: Path,
    head: HeadKind,
    backbone: str,
) -> dict[str, Tensor]:
    """Merges the adapters into the initial weights; returns tensors by their name in the files."""
    recipe = loaded.training_recipe
    identity = checkpoint.state["identity"]
    then = {name: identity[name] for name in identity if name.startswith("model.")}
    changed = list_differences(then, model_files(require_folder(base)))
    if changed:
        raise NoCheckpointError(
            f"{checkpoint.folder} has adapters for a different model than {base} now holds:\n  "
            + "\n  ".join(changed)
            + "\nrestore it, or pass --adapter to export only the adapters"
        )
    section = LearnerSection(device="cpu", lora=recipe.learner.lora)
    learner = LearnerSpec(str(base), head, section, None, recipe.seed).build()
    learner.load(saved)
    return {name_in_folder(backbone, name): tensor for name, tensor in learner.weights()}


def _choose_checkpoint(checkpoints: CheckpointStore, which: str) -> VerifiedCheckpoint:
    if which == "latest":
        newest = checkpoints.read_latest()
        if newest is None:
            raise NoCheckpointError(f"{checkpoints.folder} has no checkpoint yet")
        return newest
    if which == "best":
        ranked = checkpoints.rank_by_score()
        if not ranked:
            raise NoCheckpointError(
                f"no checkpoint in {checkpoints.folder} has a score; set run.best in the recipe"
            )
        return checkpoints.read_step(ranked[-1][1])
    if not re.fullmatch(r"[0-9]{1,18}", which):
        raise InputError(f"checkpoint {shorten_text(which)!r}: use latest, best, or a step number")
    return checkpoints.read_step(int(which))
