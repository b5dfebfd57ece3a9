"""`lockstep train RECIPE --dry-run`: all that can be known before the first step, found without a weight in memory.

Data is gone over as a run does it, the reward function is started, the model is built without memory for its weights
and compared with the headers of its files. What a recipe makes is made, in a folder that goes away.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from lockstep.batch import Batch
from lockstep.config import Loaded
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.files import Files, open_rows
from lockstep.data.pairs import Pairs
from lockstep.data.prompts import Prompts
from lockstep.data.selection import Head, head
from lockstep.experience.judge.asking import Answering
from lockstep.experience.judge.build import meta_judge, score_judge
from lockstep.experience.rewards import MathReward, build, rule_of
from lockstep.learners.torch.learner import resolve_device
from lockstep.models.folder import check_weights, read_config, skeleton
from lockstep.models.load import scratch_config
from lockstep.models.parallelize import require_divisible
from lockstep.recipe import (
    AskedSection,
    Common,
    DPORecipe,
    LearnerSection,
    PPORecipe,
    RewardSection,
    SamplingRecipe,
    SelfRewardingRecipe,
    SFTRecipe,
)
from lockstep.runtime import memory
from lockstep.runtime.doctor_reports import examination
from lockstep.runtime.findings import Findings
from lockstep.runtime.folder import FRAME, changed_options, require_writable, standing
from lockstep.runtime.job import extent_of, require_context
from lockstep.runtime.jobs import batch_arithmetic
from lockstep.runtime.judges import Policy, policy_answers
from lockstep.runtime.known import known_rows
from lockstep.runtime.memory import Sizes, readable
from lockstep.runtime.new_prompts import request_of
from lockstep.runtime.rows import DataFiles, data_files, open_demonstrations, open_own_answers, open_pairs, open_prompts
from lockstep.runtime.self_rewarding import self_rewarding_arithmetic, self_rewarding_extent, self_rewarding_rules
from lockstep.runtime.source import Source, open_source, scratch_tokenizer
from lockstep.runtime.trackers.run import views_of
from lockstep.runtime.trackers.view import Facts
from lockstep.runtime.workers import require_sampler
from lockstep.types import Prompt, Request, SamplingParams

_ANSWERS = 64  # right answers that are read; each is a question to math-verify


@dataclass(frozen=True)
class _Model:
    """A first model that is not loaded."""

    source: Source
    sizes: Sizes


def dry_run(loaded: Loaded, allow_changes: bool = False) -> str:
    """Checks a recipe and leaves nothing behind.

    Args:
        loaded: The recipe.
        allow_changes: As for `train`.

    Returns:
        A short report.

    Raises:
        DryRunError: Every problem that was found, one sentence per line.
    """
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="lockstep-dry-run-") as folder:
        _checked(loaded, allow_changes, Path(folder), found)
    found.problems = [problem.replace(folder, str(loaded.run_folder)) for problem in found.problems]
    return f"{loaded.name} can start; nothing was kept.\n{found.report()}"


def _checked(loaded: Loaded, allow_changes: bool, made: Path, found: Findings) -> _Model | None:
    recipe = loaded.training
    with found.problem():
        _device(recipe.learner, found)
    if isinstance(recipe, SamplingRecipe):
        with found.problem():
            require_sampler(recipe.sampler, recipe.learner)
        with found.problem():
            _examined(recipe, found)
    with found.problem():
        _run_folder(loaded, allow_changes, found)
    with found.problem():
        views = views_of(recipe.trackers, Facts(loaded.run_folder, loaded.dump(), {}))
        found.say("logs", ", ".join(["metrics.jsonl", *views]))
    files = _files(recipe, made, found)
    model = _model(loaded, allow_changes, files, made, found)
    match recipe:
        case PPORecipe():
            _ppo(recipe, files, model, found)
        case SelfRewardingRecipe():
            _self_rewarding(recipe, files, model, found)
        case SFTRecipe() | DPORecipe():
            _supervised(recipe, files, model, found)
    if model is not None:
        with found.problem():
            require_divisible(read_config(model.source.folder), recipe.learner.parallel.tp)
        with found.problem():
            _memory(recipe, model.sizes, found)
        with found.problem():
            _disk(loaded, model.sizes, found)
    return model


def _examined(recipe: SamplingRecipe, found: Findings) -> None:
    """What the doctor has said of the model; `run.require_doctor` makes a problem of what is missing."""
    known = examination(recipe)
    if known is not None:
        found.say("doctor", known.sentence)


def _device(learner: LearnerSection, found: Findings) -> None:
    device, parallel, ranks = resolve_device(learner.device), learner.parallel, learner.parallel.ranks
    shape = " × ".join(f"{name} {size}" for name, size in parallel.model_dump().items())
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        raise ValueError(
            f"learner.parallel asks for {ranks} ranks ({shape}), but there are {torch.cuda.device_count()} GPUs"
        )
    cores = len(os.sched_getaffinity(0))
    if device.type == "cpu" and ranks > cores:
        found.notes.append(
            f"learner.parallel asks for {ranks} ranks, but this process may use {cores} cores; they wait"
        )
    if device.type == "cpu" and learner.dtype == "bf16":
        found.notes.append(
            "learner.dtype is bf16, which few CPUs compute faster than fp32; learner.dtype=fp32 may be better"
        )
    found.say("device", f"{device}, {learner.dtype}, " + (f"{ranks} ranks: {shape}" if ranks > 1 else "1 rank"))


def _run_folder(loaded: Loaded, allow_changes: bool, found: Findings) -> None:
    folder = loaded.run_folder
    require_writable(folder)
    changed_options(loaded, allow_changes)
    state = "exists; the run goes on there, or is finished" if (folder / "recipe.yaml").is_file() else "new"
    found.say("run folder", f"{folder} ({state})")


def _files(recipe: Common, made: Path, found: Findings) -> DataFiles | None:
    """The files of rows, where each can be read."""
    before = len(found.problems)
    files = data_files(recipe.data, made)
    for rows in dict.fromkeys(part for part in (files.train, files.demonstrations, files.validation) if part):
        with found.problem():
            open_rows(rows, recipe.data.bad_rows)
    return files if len(found.problems) == before else None


def _model(loaded: Loaded, allow_changes: bool, files: DataFiles | None, made: Path, found: Findings) -> _Model | None:
    """The first model; None where it is not known because of a problem."""
    first = loaded.warm_start
    if first is None:
        with found.problem():
            return _opened(loaded.training, files, made / FRAME, found)
        return None
    if (first.run_folder / "final").is_dir():
        found.say("model", f"{first.name} has been trained: {first.run_folder}")
        with found.problem():
            return _of_folder(first.run_folder / "final")
        return None
    found.say("model", f"{first.name} is trained first:")
    inner = Findings()
    model = _checked(first, allow_changes, made / "first", inner)
    found.problems += [f"{first.name}: {problem}" for problem in inner.problems]
    found.lines += [(f"  {about}", text) for about, text in inner.lines]
    found.notes += [note for note in inner.notes if note not in found.notes]
    return model


def _opened(recipe: Common, files: DataFiles | None, frame: Path, found: Findings) -> _Model | None:
    if recipe.model.scratch is None:
        model = _of_folder(Path(str(recipe.model.path)))
    elif files is None:
        return None
    else:
        tokenizer = scratch_tokenizer(recipe, files.demonstrations)
        config = scratch_config(recipe.model.scratch.config, tokenizer)
        skeleton(config, "model.scratch.config")
        config.save_pretrained(frame)
        tokenizer.save_pretrained(frame)
        model = _of_folder(frame, weights=False)
    place = "a new model" if recipe.model.scratch is not None else str(recipe.model.path)
    found.say(
        "model",
        f"{place}, {model.sizes.policy:,} parameters, context {model.source.context}, vocabulary "
        f"{model.sizes.vocabulary:,}, stop tokens {', '.join(map(str, model.source.stop_token_ids))}",
    )
    return model


def _of_folder(folder: Path, weights: bool = True) -> _Model:
    """A model by its configuration; its weights are compared with that where there are any."""
    model: PreTrainedModel = skeleton(read_config(folder), str(folder))
    if weights:
        check_weights(folder, model)
    return _Model(open_source(folder), Sizes.of(model))


def _ppo(recipe: PPORecipe, files: DataFiles | None, model: _Model | None, found: Findings) -> None:
    with found.problem():
        build(recipe.reward)
    if model is None or files is None:
        return
    with found.problem():
        require_context(recipe, model.source)
    size = recipe.ppo.num_prompts_per_step
    train = _prompts(recipe, files.train, head(recipe.data.limit_train_batches, size), model, found)
    limit = head(recipe.data.limit_val_batches, size)
    validation = _prompts(recipe, files.validation, limit, model, found) if files.validation else None
    if train is None:
        return
    with found.problem():
        extent = extent_of(recipe, len(train), recipe.ppo.num_prompts_per_step)
        held_out = _count(validation, "prompts") if validation else "none"
        found.say("data", f"{_count(train, 'prompts')} to train on, {held_out} to validate on")
        found.say("step", batch_arithmetic(recipe, train))
        found.say("micro-batches", _micro_batches(recipe, recipe.ppo.global_batch_size, _longest(recipe)))
        found.say("run", _course(recipe, extent.steps, validation is not None))
    with found.problem():
        _reward(recipe.reward, train.first(_ANSWERS), train, found)


class _Nobody:
    """Stands where a sampler will be, and is asked nothing."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        raise AssertionError("a dry run generates nothing")


def _judged_by(section: AskedSection, policy: Policy, name: str) -> Answering | None:
    """Who would judge, asked nothing; None where that is a server whose model is not known."""
    if section.is_policy:
        return policy_answers(section, policy, name)
    return None if section.path is None else policy_answers(section, Policy(_Nobody(), open_source(section.path)), name)


def _self_rewarding(
    recipe: SelfRewardingRecipe, files: DataFiles | None, model: _Model | None, found: Findings
) -> None:
    with found.problem():
        build(recipe.verifier)
    if model is None or files is None:
        return
    with found.problem():
        require_context(recipe, model.source)
    policy = Policy(_Nobody(), model.source)
    with found.problem():
        asked = _judged_by(recipe.judge, policy, "judge")
        if asked is not None:
            score_judge(recipe.judge, asked, recipe.seed)
    with found.problem():
        asked = None if recipe.meta_judge is None else _judged_by(recipe.meta_judge, policy, "meta_judge")
        if recipe.meta_judge is not None and asked is not None:
            meta_judge(recipe.meta_judge, asked, recipe.seed)
    with found.problem():
        limit = head(recipe.data.limit_train_batches, recipe.self_rewarding.global_batch_size)
        wanted = rule_of(recipe.verifier, judge=True)
        prompts = open_prompts(files.train, recipe.asked, model.source.tokenizer, wanted, limit)
        if recipe.verifier is not None:
            _reward(recipe.verifier, prompts.first(_ANSWERS), prompts, found)
        rules = self_rewarding_rules(recipe, prompts, model.source)
        if recipe.new_prompts is not None:
            request_of(recipe, recipe.new_prompts, prompts, model.source)
        if recipe.self_rewarding.first_iteration_sft:
            open_own_answers(files.demonstrations, recipe, model.source, limit)
        known = any(known_rows(recipe, files))
        validates = known or (files.validation is not None and recipe.validation_reward is not None)
        found.say("step", self_rewarding_arithmetic(recipe, prompts, rules))
        found.say("run", _course(recipe, self_rewarding_extent(recipe, rules).steps, validates))


def _prompts(recipe: PPORecipe, files: Files, limit: Head, model: _Model, found: Findings) -> Prompts | None:
    with found.problem():
        return open_prompts(files, recipe.data, model.source.tokenizer, rule_of(recipe.reward), limit)
    return None


def _reward(section: RewardSection, first: Sequence[Prompt], rows: Prompts, found: Findings) -> None:
    """What is known of the reward before there is a response; `rows` have been gone over."""
    match section.type:
        case "math":
            _answers(MathReward(section.marker), first, rows, found)
        case "python":
            found.say("reward", f"{section.function} is there and takes four arguments; it was not called")
        case "code":
            found.say("reward", "code; a program was run in the sandbox, and every row has tests")
        case "instructions":
            found.say("reward", "instructions; those of every row can be checked")
        case "by_row":
            named = Counter(str(prompt.row[section.verifier or ""]) for prompt in first)
            shares = ", ".join(f"{count} {name}" for name, count in named.items())
            found.say("reward", f"by row; of the first {len(first)} rows: {shares}")
            math = [prompt for prompt in first if prompt.row[section.verifier or ""] == "math"]
            if math:
                _answers(MathReward(section.marker), math, rows, found)


def _answers(reward: MathReward, first: Sequence[Prompt], rows: Prompts, found: Findings) -> None:
    answers = [rows.answer(prompt) for prompt in first]
    verdicts = reward(first, answers, answers)
    wrong = next((prompt.id for prompt, verdict in zip(first, verdicts, strict=True) if verdict == 0.0), None)
    if wrong is not None:
        found.notes.append(f"{wrong}: its right answer, given as a response, is worth 0; is reward.marker in it?")
    found.say("reward", f"math; the right answers of the first {len(first)} rows can be read")


def _supervised(recipe: SFTRecipe | DPORecipe, files: DataFiles | None, model: _Model | None, found: Findings) -> None:
    """What learns from rows as they are: demonstrations, or pairs of answers."""
    if model is None or files is None:
        return
    with found.problem():
        require_context(recipe, model.source)
    with found.problem():
        section, what = (recipe.sft, "rows") if isinstance(recipe, SFTRecipe) else (recipe.dpo, "pairs")
        size, data, sequences = section.global_batch_size, recipe.data, 1 if what == "rows" else 2
        held_out = files.validation and _learned(recipe, files.validation, head(data.limit_val_batches, size), model)
        rows = _learned(recipe, files.demonstrations, head(data.limit_train_batches, size), model)
        extent = extent_of(recipe, len(rows), size)
        found.say("data", f"{_count(rows, what)}, {_count(held_out, what) if held_out else 'none'} to validate on")
        found.say("step", f"{size} {what} → 1 optimizer step")
        found.say("micro-batches", _micro_batches(recipe, sequences * size, section.max_tokens))
        found.say("run", _course(recipe, extent.steps, held_out is not None))


def _learned(recipe: SFTRecipe | DPORecipe, files: Files, limit: Head, model: _Model) -> Demonstrations | Pairs:
    if isinstance(recipe, SFTRecipe):
        return open_demonstrations(files, recipe, model.source, limit)
    return open_pairs(files, recipe, model.source, limit)


def _count(rows: Prompts | Demonstrations | Pairs, what: str) -> str:
    return f"{len(rows):,} {what} ({rows.selection.account})"


def _longest(recipe: PPORecipe) -> int:
    return recipe.data.max_prompt_tokens + recipe.sampling.max_tokens


def _micro_batches(recipe: Common, rows: int, longest: int) -> str:
    """The most that an optimizer step can need, when every sequence is as long as it may be."""
    learner = recipe.learner
    together, share = max(1, learner.micro_batch_tokens // longest), -(-rows // learner.parallel.row_shares)
    return (
        f"at most {-(-share // together)} per optimizer step and rank, of {learner.micro_batch_tokens:,} tokens: "
        f"{together} of the longest sequences ({longest} tokens)"
    )


def _course(recipe: Common, steps: int, validates: bool) -> str:
    every, saves = recipe.run.validate_every, -(-steps // recipe.run.save_every)
    validations = len({0, steps, *(range(every, steps, every) if every else ())}) if validates else 0
    return f"{steps} steps, {validations} validations, {saves} checkpoints of which {recipe.run.keep} are kept"


def _memory(recipe: Common, sizes: Sizes, found: Findings) -> None:
    learner = recipe.learner
    parts = memory.trained("policy", sizes.policy, sizes, learner)
    parts += memory.frozen(sizes, learner) if isinstance(recipe, DPORecipe | SelfRewardingRecipe) else []
    if isinstance(recipe, PPORecipe):
        parts += memory.trained("critic", sizes.critic, sizes, learner)
        parts += memory.frozen(sizes, learner) if recipe.ppo.kl.coef else []
        parts += memory.sampling(sizes, learner, recipe.sampler.max_batch_size, _longest(recipe))
    for part in parts:
        times = f" in each of {part.count} processes" if part.count > 1 else ""
        found.say("memory", f"{part.holder}: {part.what} {readable(part.size)}{times}")
    if resolve_device(learner.device).type == "cuda":
        _fits(sum(part.size for part in parts), torch.cuda.get_device_properties(0).total_memory, "a GPU here", found)
    else:
        _fits(sum(part.size * part.count for part in parts), memory.machine_bytes(), "this machine", found)


def _fits(needed: float, there: int, where: str, found: Findings) -> None:
    found.say("memory", f"together at most about {readable(needed)}; {where} has {readable(there)}")
    if needed > there:
        raise ValueError(
            f"the run needs about {readable(needed)} of memory, but {where} has {readable(there)}; take a smaller "
            "model, or lower learner.micro_batch_tokens or sampler.max_batch_size"
        )


def _disk(loaded: Loaded, sizes: Sizes, found: Findings) -> None:
    """Checkpoints that are kept, the one being written, and the final model."""
    recipe = loaded.training
    models = [sizes.policy] + ([sizes.critic] if isinstance(recipe, PPORecipe) else [])
    one, best = memory.checkpoint_bytes(*models), 0 if recipe.run.best is None else recipe.run.best.count
    needed = one * (recipe.run.keep + best + 1) + 4 * sizes.policy
    free = shutil.disk_usage(standing(loaded.run_folder)).free
    found.say("disk", f"at most {readable(needed)}: checkpoints of {readable(one)}; {readable(free)} are free")
    if needed > free:
        raise ValueError(
            f"the run needs up to {readable(needed)} of disk at {loaded.run_folder}, but {readable(free)} are free; "
            "make room, lower run.keep, or set run.folder to another disk"
        )
