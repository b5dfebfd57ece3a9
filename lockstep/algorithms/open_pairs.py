"""Opening of the pairs of a recipe."""

from __future__ import annotations

from lockstep.algorithms.pairs import PairsRecipe
from lockstep.algorithms.rows import open_pairs
from lockstep.algorithms.setup import Setup
from lockstep.data.files import FileGroup
from lockstep.data.pairs import Pairs
from lockstep.data.selection import head


def open_train_pairs(recipe: PairsRecipe, setup: Setup) -> Pairs:
    """Opens the training pairs."""
    return _open(setup.files.train, recipe, setup, recipe.data.limit_train_batches)


def open_held_out_pairs(recipe: PairsRecipe, setup: Setup) -> Pairs | None:
    """Opens the held-out pairs; None where there are none."""
    files = setup.files.validation
    return None if files is None else _open(files, recipe, setup, recipe.data.limit_val_batches)


def _open(files: FileGroup, recipe: PairsRecipe, setup: Setup, batches: float | int | None) -> Pairs:
    limit = head(batches, recipe.pairs.global_batch_size)
    return open_pairs(files, recipe.data, setup.source, recipe.pairs.max_tokens, recipe.limit, limit)
