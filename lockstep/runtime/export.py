"""`lockstep export`: the model of one of a run's checkpoints as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lockstep.config import load
from lockstep.learners.boxes import Boxes, written
from lockstep.models.export import assemble
from lockstep.models.heads import canonical
from lockstep.report.card import card
from lockstep.report.log import require_run
from lockstep.runtime.checkpoint import Checkpoint, CheckpointError, Checkpoints
from lockstep.runtime.folder import FRAME


def export(run: Path, out: Path, which: str = "latest", dtype: Literal["fp32", "bf16"] = "fp32") -> int:
    """Writes the policy of a checkpoint, with configuration, tokenizer, chat template, generation settings and a card.

    Args:
        run: Folder of the run.
        out: Where to; must not exist.
        which: `latest`, `best` (by `run.best`), or the number of a step.
        dtype: Of the weights that are written.

    Returns:
        The step of the checkpoint.

    Raises:
        ValueError: If `run` is no run, or `out` is there already.
        CheckpointError: If there is no such checkpoint.
    """
    require_run(run)
    if out.exists():
        raise ValueError(f"{out} is there already; name a folder that is not")
    found = _chosen(Checkpoints(run / "checkpoints", keep=1), which)
    with Boxes(written(found.folder / "policy", "model")) as saved:
        weights = {canonical(name): saved.whole(name) for name in saved.names()}
    recipe = load(str(run / "recipe.yaml"))
    model = recipe.training.model
    base = model.path or model.from_recipe or "a new model"
    text = card(run, recipe.recipe.algorithm, Path(base).name, found.step)
    out.parent.mkdir(parents=True, exist_ok=True)
    assemble(run / FRAME, weights, out, dtype, text)
    return found.step


def _chosen(checkpoints: Checkpoints, which: str) -> Checkpoint:
    if which == "latest":
        newest = checkpoints.latest(print)
        if newest is None:
            raise CheckpointError(f"{checkpoints.folder} holds no checkpoint yet")
        return newest
    if which == "best":
        ranked = checkpoints.ranked()
        if not ranked:
            raise CheckpointError(f"no checkpoint in {checkpoints.folder} has a score; set run.best in the recipe")
        return checkpoints.at(ranked[-1][1])
    if not which.isdigit():
        raise ValueError(f"checkpoint {which!r}: say latest, best, or the number of a step")
    return checkpoints.at(int(which))
