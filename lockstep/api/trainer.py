"""An algorithm as an object: a recipe from keyword arguments, and the run that it trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from lockstep.algorithms.base import Algorithm
from lockstep.api.run import Run
from lockstep.api.short_errors import shorten_traceback
from lockstep.api.values import build_tree
from lockstep.config import user_code
from lockstep.config.loading import LoadedRecipe, describe_recipe, load_options
from lockstep.config.recipe_files import RecipeLayer
from lockstep.run.callbacks import OnStep
from lockstep.system.printable import print_status


class Trainer:
    """An algorithm with its options, ready to train; they are checked as on the command line.

    Each shipped algorithm has a subclass, such as `lockstep.GRPO`; `Trainer` itself takes your own
    algorithm, as a class or as text (`file.py:Class`).

    Args:
        algorithm: The algorithm; None means the subclass's own.
        recipe: A recipe to start from, a name that `lockstep config` lists or a YAML file; None
            means the shipped one with the algorithm's name.
        options: Options of the recipe. Sections are mappings, such as `grpo={"clip": 0.1}`. Short
            forms: `model` is a folder; `train` and `validation` are files, lists of rows, or
            datasets; `reward` is a function `f(prompt, response, answer, row)`, a list of
            functions, a mapping from names to functions or to pairs of function and weight, or the
            name of a verifier; `environment` is a class, whose rewards count if `reward` and
            `recipe` are left out.

    Raises:
        RecipeError: One sentence for each invalid option.
    """

    algorithm: ClassVar[str | None] = None
    _loaded: LoadedRecipe
    """The resolved recipe."""
    _resolve: Callable[..., LoadedRecipe]
    """Resolves the recipe again with additional layers of options, which override it."""

    @shorten_traceback
    def __init__(
        self,
        algorithm: str | type[Algorithm] | None = None,
        *,
        recipe: str | Path | None = None,
        **options: Any,
    ) -> None:
        named = algorithm or self.algorithm
        if named is None or (algorithm is not None and self.algorithm is not None):
            raise TypeError(
                "only Trainer itself accepts algorithm: a class derived from Algorithm, or "
                "file.py:Class"
            )
        text = named if isinstance(named, str) else user_code.make_reference(named)
        base = str(recipe) if recipe is not None else self.algorithm
        if base is not None:
            name = Path(base).stem
        else:
            name = text.rpartition(":")[2].partition("-")[0].lower()
        tree = {"algorithm": text, **build_tree(options)}
        if recipe is None and self.algorithm is not None and tree.get("environment") is not None:
            tree.setdefault("reward", None)  # drop the base's reward, which ignores the environment
        layer = RecipeLayer(f"lockstep.{type(self).__name__}", tree)
        self._resolve = partial(load_options, name, base, layer)
        self._loaded = self._resolve()

    @property
    def folder(self) -> Path:
        """The run's folder; different options give a different folder."""
        return self._loaded.run_folder

    def describe(self) -> str:
        """The resolved recipe as YAML, each option with its origin."""
        return describe_recipe(self._loaded, origins=True)

    @shorten_traceback
    def dry_run(self) -> str:
        """Checks everything that can be checked before the first step.

        Raises:
            DryRunError: One sentence per problem.
        """
        from lockstep.run.dry_run.dry_run import dry_run

        return dry_run(self._loaded)

    @shorten_traceback
    def train(
        self,
        *,
        on_step: OnStep | None = None,
        allow_changes: bool = False,
    ) -> Run:
        """Trains to the end, or resumes the run that the same arguments started.

        An interrupt (Ctrl-C, or a notebook's stop button) ends the run after its current step and
        saves it; the same call resumes it.

        Args:
            on_step: Called after each step with the step's number and its metrics, including
                validation; and with 0 after the validation before the first step.
            allow_changes: Resume even if data, initial model or code have changed.
        """
        return train_loaded(self._loaded, on_step, allow_changes)

    def __repr__(self) -> str:
        return f"<lockstep.{type(self).__name__} → {self.folder}>"


def train_loaded(loaded: LoadedRecipe, on_step: OnStep | None, allow_changes: bool = False) -> Run:
    """Trains a resolved recipe; a run that was stopped early is saved and returned.

    Prints a line if the run stopped early or nothing was trained.
    """
    if "transformers" not in sys.modules:
        print_status(
            "lockstep: loading torch and transformers; this can take a minute on a cold disk"
        )
    from lockstep.cluster.child_process import exit_unguarded
    from lockstep.run.stop import StoppedRun
    from lockstep.run.train import describe_nothing_trained, train_recipe

    exit_unguarded()
    try:
        ending = describe_nothing_trained(train_recipe(loaded, allow_changes, on_step=on_step))
    except StoppedRun as stopped:
        ending = str(stopped)
    if ending is not None:
        print_status(f"lockstep: {ending}")
    return Run(loaded.run_folder)


@shorten_traceback
def train(
    recipe: str | Path,
    *,
    on_step: OnStep | None = None,
    allow_changes: bool = False,
    **options: Any,
) -> Run:
    """Trains a recipe by name or file, like `lockstep train`, with the options of `Trainer`."""
    layer = RecipeLayer("lockstep.train", build_tree(options))
    loaded = load_options(Path(recipe).stem, str(recipe), layer)
    return train_loaded(loaded, on_step, allow_changes)
