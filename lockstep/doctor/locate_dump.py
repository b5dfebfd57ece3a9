"""`lockstep doctor locate DUMP --model FOLDER` and `locate FOLDER --url URL`: the side that leaves the model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lockstep import exit_codes
from lockstep.config.hub import fetch_model
from lockstep.config.loading import Loaded
from lockstep.doctor.locate_model import draw_requests
from lockstep.doctor.options import DoctorRecipe
from lockstep.doctor.plan import PromptSource
from lockstep.errors import InputError
from lockstep.models.device import resolve_device
from lockstep_doctor.dumps import Dump, DumpError, FieldNames, Server, describe_dump, locate_dump, score_by_url


def locate_file(dump: str, model: str, names: FieldNames) -> int:
    """Prints which side of a dump leaves the model, and at which stage; returns the exit code.

    Args:
        model: Folder of the model, or of the finished run that trained it.

    Raises:
        InputError: The dump or the model cannot be read.
    """
    return _locate(Path(dump), fetch_model(model), names)


def locate_server(loaded: Loaded, url: str, served: str | None = None, variable: str | None = None) -> int:
    """Draws requests from a model, asks a server about them, and prints at which stage it leaves the model.

    Args:
        served: Name of the model there; None: the first that it lists.
        variable: The environment variable that holds the server's key; None: it needs none.

    Returns:
        The exit code.

    Raises:
        InputError: The server has no log-probabilities of prompts, the model cannot be read, there is no key, or its
            time has a bound, which is not kept.
    """
    key = None if variable is None else os.environ.get(variable, "").strip()
    if key == "":
        raise InputError(f"the environment variable {variable} is not set; it holds the key of {Server(url).place}")
    recipe = loaded.expect(DoctorRecipe)
    if recipe.grid.budget_s is not None:
        raise InputError("locate with --url does not read grid.budget_s; leave it out")
    _say("draw requests from the model")
    drawn = draw_requests(recipe, PromptSource(recipe))
    _say(f"ask the server about {len(drawn)} requests")
    try:
        dump = score_by_url(Server(url, served, key), list(drawn.sequences()))
    except DumpError as error:
        raise InputError(str(error)) from error
    return _locate(dump, recipe.model.path, device=str(resolve_device(recipe.learner.device)))


def _locate(dump: Dump | Path, folder: Path | str, names: FieldNames | None = None, device: str = "cpu") -> int:
    try:
        found = locate_dump(dump, folder, names, device=device, heard=_say)
    except DumpError as error:
        raise InputError(str(error)) from error
    print("\n".join(describe_dump(found)))
    return exit_codes.BROKEN if found.wrong else exit_codes.OK


def _say(phase: str) -> None:
    print(phase, file=sys.stderr, flush=True)
