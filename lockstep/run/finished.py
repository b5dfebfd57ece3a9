"""A finished run, and whether the files that it was made of are still the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from lockstep.algorithms.rows import data_files
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import weights_of
from lockstep.errors import InputError
from lockstep.models.digests import model_files
from lockstep.run.checkpoint import Checkpoints
from lockstep.run.identity import ChangedError, Identity, differences, inputs
from lockstep.run.session import read_state


def require_same_files(loaded: Loaded) -> None:
    """Raises ChangedError where rows, models or code have changed since a run was finished.

    Files that are no longer there, and names of the hub, whose commit the run keeps, are not compared.
    """
    folder = loaded.run_folder
    newest = Checkpoints(folder / "checkpoints", keep=1).newest_unverified()
    if newest is None:
        return
    try:
        noted = read_state(newest).identity
    except InputError:  # of another version, or damaged: it does not say what the run was made of
        return
    now = _read_files(loaded)
    then = {name: noted[name] for name in now if name in noted}
    changed = differences(then, {name: now[name] for name in then})
    if changed:
        raise ChangedError(
            f"{folder} is finished, and was made with something else:\n  " + "\n  ".join(changed) + "\nput it back as "
            "it was, choose another run.folder, remove this one, or leave it as it is by --allow-changes"
        )


def _read_files(loaded: Loaded) -> Identity:
    """The digests of the files that a recipe names, as far as they are there."""
    recipe, found = loaded.training, Identity()
    readers: list[Callable[[], Identity]] = [lambda: inputs(loaded, {}, None)]
    if recipe.data.task is None:
        readers.append(lambda: _read_rows(loaded))
    if recipe.model.path is not None:
        readers.append(lambda: dict(model_files(weights_of(str(recipe.model.path)))))
    for read in readers:
        with suppress(OSError, InputError):
            found |= read()
    return {name: own for name, own in found.items() if not name.startswith("recipe.")}


def _read_rows(loaded: Loaded) -> Identity:
    files = data_files(loaded.training.data, loaded.run_folder)
    return {f"data.{name}": own for name, own in files.digests().items()}
