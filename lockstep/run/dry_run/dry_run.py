"""`lockstep train RECIPE --dry-run`: checks a run before its first step, without weights.

Data is read as in a run, the reward function is imported, and the model is built without memory for
weights and compared with the headers of its files. Files that a run would generate go to a
temporary folder.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.columns import read_columns
from lockstep.algorithms.exactness import decide_exact
from lockstep.algorithms.rows import DataFiles, data_files
from lockstep.cluster.learner_group import require_computable
from lockstep.cluster.placement import plan_placement
from lockstep.cluster.self_check import require_proof
from lockstep.cluster.specs import require_sampler
from lockstep.config import Common
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.core.errors import InputError
from lockstep.data.files import open_rows
from lockstep.learners import backend
from lockstep.models.device import keep_fp32, resolve_device
from lockstep.models.folder import build_skeleton, read_config
from lockstep.models.heads import scores_tokens
from lockstep.models.load import scratch_config
from lockstep.models.source import ModelSource, describe_template, open_source, scratch_tokenizer
from lockstep.models.weight_files import are_on_hub, check_weights, require_finite
from lockstep.plan.estimate import MemoryEstimate, checkpoint_bytes
from lockstep.plan.page import describe_layouts
from lockstep.plan.sizes import FP32, ModelSizes
from lockstep.rewards.build import build_reward
from lockstep.run.dry_run.remarks import list_remarks
from lockstep.run.dry_run.setup import DryRunFindings, DrySetup
from lockstep.run.folder.files import (
    FRAME,
    describe_shorter_run,
    find_changed_options,
    find_standing,
    require_writable,
)
from lockstep.run.live_setup import (
    describe_step,
    require_lengths,
    role_folder,
    self_checked_sampling,
)
from lockstep.run.trackers.follow import build_views
from lockstep.run.trackers.view import RunFacts
from lockstep.system import machine_memory
from lockstep.system.units import format_bytes

_CheckedModel = tuple[ModelSource, PreTrainedModel]
"""An initial model whose weights are not loaded."""


def dry_run(loaded: LoadedRecipe, allow_changes: bool = False) -> str:
    """Checks a recipe; leaves no files behind.

    Args:
        loaded: The recipe.
        allow_changes: As for `train`.

    Returns:
        A short report.

    Raises:
        DryRunError: All problems found, one sentence per line.
    """
    findings = DryRunFindings()
    with tempfile.TemporaryDirectory(prefix="lockstep-dry-run-") as folder:
        _check_parts(loaded, allow_changes, Path(folder), findings)
    findings.problems = [
        problem.replace(folder, str(loaded.run_folder)) for problem in findings.problems
    ]
    return f"{loaded.name} can start; nothing was kept.\n{findings.build_report()}"


def _check_parts(
    loaded: LoadedRecipe, allow_changes: bool, made: Path, findings: DryRunFindings
) -> _CheckedModel | None:
    loaded = read_columns(fetch_names(loaded, weights=False))
    recipe = loaded.expect_recipe(Algorithm)
    with findings.collect_problem():
        _check_device(recipe, findings)
    with findings.collect_problem():
        findings.add_line("placement", plan_placement(recipe).describe())
    with findings.collect_problem():
        if recipe.inference is not None:
            require_sampler(recipe.inference.sampler, recipe.learner)
    with findings.collect_problem():
        _run_folder(loaded, allow_changes, findings)
    with findings.collect_problem():
        views = build_views(recipe.trackers, RunFacts.from_recipe(loaded))
        findings.add_line("logs", ", ".join(["metrics.jsonl", *views]))
    files = _check_files(recipe, made, findings)
    if files is not None:
        findings.notes += list_remarks(recipe, files)
    model = _check_model(loaded, allow_changes, files, made, findings)
    for option, section in recipe.rewards.items():
        with findings.collect_problem():
            build_reward(section, findings.notes.append, option=option)
    if model is not None:
        source, network = model
        with findings.collect_problem():
            findings.notes += filter(None, [describe_template(source, recipe.data)])
        sizes = ModelSizes.from_model(network, recipe.learner.lora)
        is_small = False  # before computing part of the model, which takes memory
        with findings.collect_problem():
            _check_memory(recipe, sizes, findings)
            is_small = True
        with findings.collect_problem():
            _require_disk(loaded, recipe, sizes)
        if files is not None:
            if is_small:
                inexact = _decide_exact(recipe, source, findings)
            else:
                inexact = "it is refused"
            _check_algorithm(
                DrySetup.from_algorithm(recipe, made, files, source, inexact, findings)
            )
        with findings.collect_problem():
            require_computable(read_config(source.folder), recipe.learner)
        for role in recipe.own_layouts:
            with findings.collect_problem():
                headless = not scores_tokens(role.head)
                config = read_config(role_folder(role, source), headless=headless)
                require_computable(config, role.learner)
        with findings.collect_problem():
            if is_small:
                require_proof(source.folder, recipe.learner, self_checked_sampling(recipe, source))
    return model


def _decide_exact(recipe: Algorithm, source: ModelSource, findings: DryRunFindings) -> str | None:
    with findings.collect_problem():
        reason = decide_exact(recipe, source.folder, findings.notes.append)
        if reason is None:
            weights = "last bits of weights depend on passes and ranks, see learner.rows_per_pass"
            if recipe.learner.rows_per_pass is not None:
                weights = "weights do not depend on passes and data-parallel ranks"
            findings.add_line(
                "agreement",
                "exact (E2): log-probabilities of sampler and learner are bitwise equal; "
                f"{weights}",
            )
        return reason
    return "it is refused"


def _check_algorithm(setup: DrySetup) -> None:
    """Opens the algorithm as a run does, with stand-ins for models, and reports the settings."""
    recipe = setup.algorithm
    findings = setup.findings
    with findings.collect_problem():
        require_lengths(recipe, setup.source)
    with findings.collect_problem():
        job = recipe.open(setup)
        held_out = job.held_out or "none"
        findings.add_line("data", f"{job.data} for training, {held_out} for validation")
        findings.add_line("step", describe_step(recipe, setup.source, setup.inexact))
        steps = job.run_length.steps
        validated = set[int]()
        if job.validate is not None:
            validated = {0, steps}
            if recipe.run.validate_every:
                validated.update(range(0, steps, recipe.run.validate_every))
        findings.add_line(
            "run",
            f"steps: {steps}; validations: {len(validated)}; checkpoints: "
            f"{-(-steps // recipe.run.save_every)}",
        )
        rest = job.run_length.describe_rest()
        if rest is not None:
            findings.notes.append(rest)


def _check_device(recipe: Algorithm, findings: DryRunFindings) -> None:
    learner = recipe.learner
    device = resolve_device(learner.device)
    ranks = learner.parallel.ranks
    separate = {role.name: role.learner for role in recipe.own_layouts}
    if ranks > 1:
        layouts = f"{ranks} ranks: {describe_layouts(learner, separate)}"
    else:
        layouts = "1 rank"
    findings.add_line("device", f"{device}, {learner.dtype}, {layouts}")
    if device.type == "cuda":
        findings.add_line("device", keep_fp32())


def _run_folder(loaded: LoadedRecipe, allow_changes: bool, findings: DryRunFindings) -> None:
    folder = loaded.run_folder
    require_writable(folder)
    find_changed_options(loaded, allow_changes)
    if (folder / "recipe.yaml").is_file():
        state = "exists; the run resumes or is already finished"
    else:
        state = "new"
        findings.notes += filter(None, [describe_shorter_run(loaded)])
    findings.add_line("run folder", f"{folder} ({state})")


def _check_files(recipe: Common, made: Path, findings: DryRunFindings) -> DataFiles | None:
    """The data files; None if one is unreadable."""
    before = len(findings.problems)
    files = data_files(recipe.data, made)
    for rows in dict.fromkeys(
        part for part in (files.train, files.demonstrations, files.validation) if part
    ):
        with findings.collect_problem():
            open_rows(rows, recipe.data.bad_rows)
    if len(findings.problems) == before:
        return files
    return None


def _check_model(
    loaded: LoadedRecipe,
    allow_changes: bool,
    files: DataFiles | None,
    made: Path,
    findings: DryRunFindings,
) -> _CheckedModel | None:
    """The initial model; None if a problem leaves it unknown."""
    first = loaded.warm_start
    if first is None:
        with findings.collect_problem():
            return _open_model(loaded.training_recipe, files, made / FRAME, findings)
        return None
    if (first.run_folder / "final").is_dir():
        findings.add_line("model", f"{first.name} is already trained: {first.run_folder}")
        with findings.collect_problem():
            return _check_folder(first.run_folder / "final")
        return None
    findings.add_line("model", f"{first.name} trains first:")
    inner = DryRunFindings()
    model = _check_parts(first, allow_changes, made / "first", inner)
    findings.problems += [f"{first.name}: {problem}" for problem in inner.problems]
    findings.lines += [(f"  {about}", text) for about, text in inner.lines]
    findings.notes += [note for note in inner.notes if note not in findings.notes]
    return model


def _open_model(
    recipe: Common, files: DataFiles | None, frame: Path, findings: DryRunFindings
) -> _CheckedModel | None:
    if recipe.model.scratch is None:
        model = _check_folder(Path(str(recipe.model.path)))
    elif files is None:
        return None
    else:
        tokenizer = scratch_tokenizer(recipe, files.demonstrations)
        config = scratch_config(recipe.model.scratch.config, tokenizer)
        build_skeleton(config, "model.scratch.config")
        config.save_pretrained(frame)
        tokenizer.save_pretrained(frame)
        model = _check_folder(frame, weights=False)
    if recipe.model.scratch is not None:
        origin = "a new model"
    else:
        origin = str(recipe.model.path)
    source, network = model
    sizes = ModelSizes.from_model(network)
    findings.add_line(
        "model",
        f"{origin}, {sizes.policy_parameters:,} parameters, context {source.context}, vocabulary "
        f"{sizes.vocabulary_size:,}, stop tokens {', '.join(map(str, source.stop_token_ids))}",
    )
    return model


def _check_folder(folder: Path, weights: bool = True) -> _CheckedModel:
    """Builds a model from its configuration, without weights, and checks its weight files."""
    source = open_source(folder)
    network = build_skeleton(read_config(folder), str(folder))
    if weights and not are_on_hub(folder):
        check_weights(folder, network)
        require_finite(folder)
    return source, network


def _check_memory(recipe: Algorithm, sizes: ModelSizes, findings: DryRunFindings) -> None:
    """Raises InputError if the run needs more memory than is available."""
    learner = recipe.learner
    trains = backend.find_backend(learner)
    if not trains.is_planned:
        findings.notes.append(
            f"memory of {trains.title} ranks is not estimated yet; try a short run"
        )
        return
    on_gpu = resolve_device(learner.device).type == "cuda"
    if on_gpu:
        available = torch.cuda.get_device_properties(0).total_memory
    else:
        available = machine_memory.total_bytes()
    estimate = MemoryEstimate.from_recipe(
        recipe, sizes, plan_placement(recipe), memory=int(available) if on_gpu else None
    )
    needed = estimate.device_bytes + estimate.context_bytes if on_gpu else estimate.machine_bytes
    where = f"{'a GPU here' if on_gpu else 'this machine'} has {format_bytes(int(available))}"
    findings.add_line(
        "memory", f"at most about {format_bytes(needed)}; {where}; `lockstep plan` breaks it down"
    )
    if needed > available:
        generates = "" if estimate.sampler is None else " or sampler.max_batch_size"
        raise InputError(
            f"the run needs about {format_bytes(needed)} of memory, but {where}; use a smaller "
            "model, "
            f"or lower learner.micro_batch_tokens{generates}"
        )


def _require_disk(loaded: LoadedRecipe, recipe: Algorithm, sizes: ModelSizes) -> None:
    """Raises InputError if the disk has too little space for the checkpoints and the model.

    Checkpoints are the kept ones and the one being written.
    """
    one = checkpoint_bytes(recipe.models, sizes)
    best = 0 if recipe.run.best is None else recipe.run.best.count
    if recipe.inference is not None and recipe.inference.one_step_ahead:
        one += FP32 * sizes.policy_parameters
    needed = one * (recipe.run.keep + best + 1) + FP32 * sizes.policy_parameters
    free = shutil.disk_usage(find_standing(loaded.run_folder)).free
    if needed > free:
        raise InputError(
            f"the run needs up to {format_bytes(needed)} of disk at {loaded.run_folder}, but "
            f"{format_bytes(free)} are free; free space, lower run.keep, or set run.folder to a "
            "different disk"
        )
