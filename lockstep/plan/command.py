"""`lockstep plan RECIPE --gpus N --memory 80GB`: memory of a run, without a GPU or weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError
from transformers import PreTrainedConfig

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.columns import read_columns
from lockstep.algorithms.rows import data_files
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.errors import InputError
from lockstep.learners.backend import find_backend
from lockstep.models.folder import ModelError, build_skeleton, read_config
from lockstep.models.load import scratch_config
from lockstep.models.parallelize import require_divisible
from lockstep.models.source import scratch_tokenizer
from lockstep.plan.layouts import LayoutSearch
from lockstep.plan.page import PlanPage, render_plan
from lockstep.plan.sizes import ModelSizes
from lockstep.plan.time import DeviceRates
from lockstep.rewards.build import require_sandbox

_MOST_GPUS = 200_000
_SIZE = TypeAdapter(ByteSize)


def plan_recipe(loaded: LoadedRecipe, gpus: int, memory: str, rates: str | None = None) -> PlanPage:
    """Plans a recipe.

    Args:
        loaded: The recipe.
        gpus: Number of GPUs.
        memory: Memory of each, such as 80GB or 80GiB.
        rates: A file of rates for estimating step time.

    Raises:
        ValueError: The recipe cannot be planned, or not for this number of GPUs.
    """
    loaded = read_columns(fetch_names(loaded, weights=False))
    room = bytes_of(memory)
    recipe = loaded.expect_recipe(Algorithm)
    if not 1 <= gpus <= _MOST_GPUS:
        raise InputError(f"--gpus is {gpus}; set it to 1 to {_MOST_GPUS:,}")
    backend = find_backend(recipe.learner)
    if not backend.is_planned:
        raise InputError(
            f"plan supports only learner.backend=torch; memory of {backend.title} ranks is not "
            "estimated yet"
        )
    for option, section in recipe.rewards.items():
        require_sandbox(section, option)
    model = _config_of_run(loaded)
    if recipe.learner.parallel.ranks == gpus:
        require_divisible(model, recipe.learner.parallel.tp)
        for role in recipe.own_layouts:
            if role.path is None:
                own = model
            else:
                own = read_config(find_weights_folder(role.path), headless=True)
            require_divisible(own, role.learner.parallel.tp, role.learner.layout_key)
    sizes = ModelSizes.from_model(
        build_skeleton(model, str(recipe.model.path)), recipe.learner.lora
    )
    known = None if rates is None else DeviceRates.from_file(Path(rates), recipe.learner.dtype)
    return render_plan(
        LayoutSearch(recipe, sizes, model, room), loaded.name, loaded.arguments, gpus, known
    )


def bytes_of(memory: str) -> int:
    """Parses a size with its unit to bytes.

    Raises:
        ValueError: The text is not a size.
    """
    try:
        if memory.strip().isdigit():
            size = 0
        else:
            size = int(_SIZE.validate_python(memory.strip()))
    except (ValidationError, OverflowError):
        size = 0
    if size <= 0:
        raise InputError(
            f"--memory is {memory!r}; set it to the memory of one GPU, such as 80GB (80·10⁹ "
            "bytes) or 80GiB"
        )
    return size


def _config_of_run(loaded: LoadedRecipe) -> PreTrainedConfig:
    """Configuration of the run's initial model, or of the warm start's if it begins with one."""
    first = loaded.warm_start
    recipe = loaded.training_recipe
    if first is not None:
        return _config_of_run(first)
    if recipe.model.scratch is not None:
        with tempfile.TemporaryDirectory(prefix="lockstep-plan-") as made:
            files = data_files(recipe.data, Path(made))
            return scratch_config(
                recipe.model.scratch.config, scratch_tokenizer(recipe, files.demonstrations)
            )
    try:
        return read_config(str(recipe.model.path))
    except ModelError as error:
        raise ModelError(
            f"{error}; plan needs only a folder with config.json: model.path=FOLDER"
        ) from None
