"""Experiments that run `lockstep train` with a part of it replaced: their runs get folders apart
from `lockstep`'s.
"""

from __future__ import annotations

from typing import Any

from lockstep.config.loading import LoadedRecipe


def name_runs_apart(alteration: str, sections: tuple[str, ...]) -> None:
    """Makes what this process replaces a part of a run's identity, and so of its folder and its
    checkpoints.

    Args:
        alteration: The module that replaces something, such as `benchmarks.unshifted`.
        sections: Recipes with one of these sections are changed by it; others, such as warm starts,
            are shared.
    """
    as_written = LoadedRecipe.build_identity

    def identity(self: LoadedRecipe) -> dict[str, Any]:
        """The options that identify the run, and what was replaced."""
        tree = as_written(self)
        return tree | {"altered": alteration} if any(tree.get(name) for name in sections) else tree

    LoadedRecipe.build_identity = identity
