"""The job of distillation: the student, its teachers, and what they learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.distill.step import (
    DataSequences,
    DistillWorkers,
    Rules,
    Sequences,
    StudentSequences,
    distill_step,
)
from lockstep.algorithms.job import (
    Job,
    Place,
    agreement_of,
    engine_of,
    extent_of,
    held_out_answers,
    learner_of,
    require_context,
    sampler_of,
    validation_of,
)
from lockstep.algorithms.rows import DataFiles, open_demonstrations, open_prompts
from lockstep.cluster.specs import LearnerSpec
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.prompts import Prompts
from lockstep.data.selection import Head, Rule, head
from lockstep.errors import InputError
from lockstep.learners.base import Learner
from lockstep.losses.distill import Distillation
from lockstep.metrics import Metrics
from lockstep.models.folder import read_config
from lockstep.models.source import Source, own_folder
from lockstep.monitor.agreement import Agreement
from lockstep.rewards.rewards import NO_ANSWERS, NoReward, rule_of
from lockstep.rewards.rewards import build as build_reward
from lockstep.rollouts.engine import Engine
from lockstep.rollouts.rollout import Experience


def distill_job(recipe: DistillRecipe, place: Place) -> Job:
    """Builds who learns, who teaches, and where sequences come from."""
    source, options = place.source, recipe.distill
    require_context(recipe, source)
    rows = distilled_rows(
        recipe, place.files, source, head(recipe.data.limit_train_batches, options.num_prompts_per_step)
    )
    student = LearnerSpec(source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    policy = learner_of(student, recipe, place)
    teachers = {
        name: learner_of(replace(student, model=folder).frozen, recipe, place)
        for name, folder in teacher_folders(recipe, source).items()
    }
    engine = _engine(recipe, policy, place)
    agreement = None
    if recipe.distill.on_policy and engine is not None:
        agreement = agreement_of(policy, engine, recipe, place)
    sequences = _sequences(recipe, rows, policy, engine, agreement, place)
    workers = DistillWorkers(policy, teachers, sequences, place.shown.phase)
    rules = Rules(options, source.vocabulary, recipe.seed, _loss(recipe))
    return Job(
        step=lambda step, position: distill_step(step, position, workers, rules),
        extent=extent_of(recipe, len(rows), options.num_prompts_per_step),
        learners={"policy": policy},
        validate=validation_of(_validation(recipe, engine, place)),
        arithmetic=distill_arithmetic(recipe, rows),
        agreement=agreement,
        section="distill",
    )


def teacher_folders(recipe: DistillRecipe, source: Source) -> dict[str, str]:
    """Where each teacher is.

    Raises:
        ValueError: One reads or writes other tokens than the student, or is a run that has not finished; or they are
            asked for more tokens than there are.
    """
    if (recipe.distill.top_k or 0) > source.vocabulary:
        raise InputError(
            f"distill.top_k={recipe.distill.top_k}, but the student has {source.vocabulary} tokens; leave top_k out to "
            "compare all of them"
        )
    folders = {name: own_folder(section, source) for name, section in recipe.teachers.items()}
    for folder in folders.values():
        rows = int(read_config(folder).get_text_config().vocab_size)
        if rows != source.vocabulary:
            raise InputError(
                f"the teacher in {folder} writes {rows} tokens, the student in {source.folder} {source.vocabulary}, so "
                "their distributions cannot be compared; bring models with vocab_size alike"
            )
    return folders


def distilled_rows(recipe: DistillRecipe, files: DataFiles, source: Source, limit: Head) -> Prompts | Demonstrations:
    """Prompts that the student answers, or rows with answers."""
    data, longest, rule = recipe.data, recipe.distill.max_tokens, _has_teacher(recipe)
    if longest is None:
        return open_prompts(files.train, data, source.tokenizer, rule, limit)
    return open_demonstrations(files.demonstrations, data, source, longest, "distill.max_tokens", limit, rule)


def distill_arithmetic(recipe: DistillRecipe, rows: Prompts | Demonstrations) -> str:
    """How rows become optimizer steps, for people."""
    its = recipe.distill
    updates = f"{its.updates} optimizer steps of {its.global_batch_size}"
    if isinstance(rows, Demonstrations):
        return f"{len(rows)} rows ({rows.selection.account}); {its.responses} rows → {updates}"
    return (
        f"{len(rows)} prompts ({rows.selection.account}); {its.num_prompts_per_step} prompts × {its.num_generations} = "
        f"{its.responses} responses → {updates} responses"
    )


def _has_teacher(recipe: DistillRecipe) -> Rule:
    field, known = recipe.distill.teacher_field, tuple(recipe.teachers)
    if field is None:
        return NO_ANSWERS

    def fault(row: Mapping[str, Any]) -> str | None:
        if row.get(field) in known:
            return None
        return f"names in the field {field!r} the teacher {row.get(field)!r}; this recipe has: {', '.join(known)}"

    return replace(NO_ANSWERS, fault=fault, key=("teacher", field, known))


def _loss(recipe: DistillRecipe) -> Distillation:
    return Distillation(recipe.distill.kl_type, recipe.distill.mixed_kl_weight, recipe.distill.zero_outside_topk)


def _sequences(
    recipe: DistillRecipe,
    rows: Prompts | Demonstrations,
    policy: Learner,
    engine: Engine | None,
    agreement: Agreement | None,
    place: Place,
) -> Callable[[int, int], Sequences]:
    options, phase = recipe.distill, place.shown.phase
    if isinstance(rows, Demonstrations):
        return DataSequences(rows, options.num_prompts_per_step, recipe.seed, phase)
    assert recipe.sampling is not None, "the recipe says how the student answers"
    assert engine is not None, "so there is a sampler"
    assert agreement is not None, "which is compared with the learner"
    experience = Experience(engine, rows, NoReward(), place.source.decode, recipe.seed)
    sampling = place.source.sampling(recipe.sampling)
    return StudentSequences(policy, experience, sampling, options, recipe.run.num_logged_samples, phase, agreement)


def _engine(recipe: DistillRecipe, policy: Learner, place: Place) -> Engine | None:
    """Answers as the student does; None where nobody wants to know."""
    if recipe.sampling is None and recipe.validation_sampling is None:
        return None
    return engine_of(policy, sampler_of(policy, place.source, recipe, place), place)


def _validation(recipe: DistillRecipe, engine: Engine | None, place: Place) -> Callable[[int], Metrics] | None:
    """What the student's answers to held-out prompts are worth."""
    reward, asked, files = recipe.validation_reward, recipe.validation_sampling, place.files.validation
    if reward is None or asked is None or engine is None or files is None:
        return None
    prompts = open_prompts(files, recipe.data, place.source.tokenizer, rule_of(reward))
    judged = Experience(engine, prompts, build_reward(reward), place.source.decode, recipe.seed)
    return held_out_answers(recipe, reward, asked, recipe.distill.num_prompts_per_step, judged, place)
