"""What a dry run finds about rows: prompts, pairs and demonstrations, what scores them, and how they become steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from lockstep.algorithms.distill.job import distill_arithmetic, distilled_rows, teacher_folders
from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.episodes import episodes_of
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.job import extent_of, require_context
from lockstep.algorithms.policy_gradient.job import batch_arithmetic
from lockstep.algorithms.policy_gradient.options import PolicyGradientRecipe
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.rows import DataFiles, open_demonstrations, open_own_answers, open_pairs, open_prompts
from lockstep.algorithms.self_rewarding.job import (
    open_held_out,
    self_rewarding_arithmetic,
    self_rewarding_extent,
    self_rewarding_rules,
)
from lockstep.algorithms.self_rewarding.known import known_rows
from lockstep.algorithms.self_rewarding.new_prompts import request_of
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.batch import Batch
from lockstep.cluster.judges import Policy, policy_answers
from lockstep.config import (
    AskedSection,
    ModelFolder,
    PairsRecipe,
    PolicyRecipe,
    RewardSection,
    SamplingRecipe,
    TrainingRecipe,
    sampling_recipe,
)
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.files import Files
from lockstep.data.pairs import Pairs
from lockstep.data.prompts import Prompts
from lockstep.data.selection import Head, head
from lockstep.judge.asking import Answering
from lockstep.judge.build import meta_judge, score_judge
from lockstep.models.source import Source, open_source, own_folder, reward_folder
from lockstep.plan.sizes import Load
from lockstep.rewards.rewards import MathReward, build, rule_of
from lockstep.run.findings import Findings
from lockstep.types import Prompt, Request, SamplingParams

_ANSWERS = 64  # right answers that are read; each is a question to math-verify


def check_rows(recipe: TrainingRecipe, files: DataFiles | None, source: Source | None, found: Findings) -> None:
    """Goes over the rows as a run does.

    Args:
        recipe: What is run.
        files: With the rows; None where one cannot be read.
        source: The first model; None where it is not known because of a problem.
        found: Is told.
    """
    sampled = sampling_recipe(recipe)
    if sampled is not None:
        with found.problem():
            build(_judging(sampled))
    if source is None or files is None:
        return
    with found.problem():
        require_context(recipe, source)
    match recipe:
        case PolicyGradientRecipe():
            _policy_gradient(recipe, files, source, found)
        case SelfRewardingRecipe():
            _self_rewarding(recipe, files, source, found)
        case DistillRecipe():
            _distill(recipe, files, source, found)
        case SFTRecipe():
            _supervised(recipe, recipe.sft.global_batch_size, "rows", files, source, found)
        case PairsRecipe():
            _supervised(recipe, recipe.pairs.global_batch_size, "pairs", files, source, found)
        case _:
            assert_never(recipe)


def _judging(recipe: SamplingRecipe) -> RewardSection | None:
    match recipe:
        case PolicyGradientRecipe():
            return recipe.reward
        case SelfRewardingRecipe():
            return recipe.verifier
        case DistillRecipe():
            return recipe.validation_reward
        case _:
            assert_never(recipe)


def _distill(recipe: DistillRecipe, files: DataFiles, source: Source, found: Findings) -> None:
    size = recipe.distill.num_prompts_per_step
    with found.problem():
        rows = distilled_rows(recipe, files, source, head(recipe.data.limit_train_batches, size))
        found.say("data", f"{_count(rows, 'rows')} to train on")
        found.say("step", distill_arithmetic(recipe, rows))
        found.say("micro-batches", _micro_batches(recipe))
        validates = files.validation is not None and recipe.validation_reward is not None
        found.say("run", _course(recipe, extent_of(recipe, len(rows), size).steps, validates))
    with found.problem():
        for name, folder in teacher_folders(recipe, source).items():
            found.say(f"teacher {name}", f"{folder} reads the student's tokens")


def _policy_gradient(recipe: PolicyRecipe, files: DataFiles, source: Source, found: Findings) -> None:
    size = recipe.options.num_prompts_per_step
    train = _prompts(recipe, recipe.reward, files.train, head(recipe.data.limit_train_batches, size), source, found)
    limit = head(recipe.data.limit_val_batches, size)
    judge = recipe.validation_reward or recipe.reward
    validation = _prompts(recipe, judge, files.validation, limit, source, found) if files.validation else None
    if train is None:
        return
    with found.problem():
        extent = extent_of(recipe, len(train), recipe.options.num_prompts_per_step)
        held_out = _count(validation, "prompts") if validation else "none"
        found.say("data", f"{_count(train, 'prompts')} to train on, {held_out} to validate on")
        found.say("step", batch_arithmetic(recipe, train))
        found.say("micro-batches", _micro_batches(recipe))
        found.say("run", _course(recipe, extent.steps, validation is not None))
    with found.problem():
        if recipe.reward is not None:
            _reward(recipe.reward, train.first(_ANSWERS), train, found)
        if episodes_of(recipe.environment, recipe.data, source, found.notes.append) is not None:
            assert recipe.environment is not None
            judged = recipe.reward is not None or recipe.reward_model is not None
            rewards = "its rewards are not asked" if judged else "its rewards count"
            found.say("environment", f"{recipe.environment.class_name} can be made; it was not played with; {rewards}")
        _rewarding(recipe.reward_model, source, found)
        _critic(recipe, source, found)


def _critic(recipe: PolicyRecipe, source: Source, found: Findings) -> None:
    match recipe:
        case PPORecipe():
            if recipe.critic_model is not None:
                folder = own_folder(recipe.critic_model, source)
                found.say("critic", f"begins with {folder}, which reads the policy's tokens")
        case GRPORecipe():
            pass
        case _:
            assert_never(recipe)


def _rewarding(section: ModelFolder | None, source: Source, found: Findings) -> None:
    if section is not None:
        found.say("reward model", f"{reward_folder(section, source)} reads the policy's tokens")


class _Nobody:
    """Stands where a sampler will be, and is asked nothing."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        raise AssertionError("a dry run generates nothing")


def _judged_by(section: AskedSection, policy: Policy, name: str) -> Answering | None:
    """Who would judge, asked nothing; None where that is a server whose model is not known."""
    if section.is_policy:
        return policy_answers(section, policy, name)
    return None if section.path is None else policy_answers(section, Policy(_Nobody(), open_source(section.path)), name)


def _self_rewarding(recipe: SelfRewardingRecipe, files: DataFiles, source: Source, found: Findings) -> None:
    policy = Policy(_Nobody(), source)
    with found.problem():
        asked = None if recipe.judge is None else _judged_by(recipe.judge, policy, "judge")
        if recipe.judge is not None and asked is not None:
            score_judge(recipe.judge, asked, recipe.seed)
    with found.problem():
        _rewarding(recipe.reward_model, source, found)
    with found.problem():
        asked = None if recipe.meta_judge is None else _judged_by(recipe.meta_judge, policy, "meta_judge")
        if recipe.meta_judge is not None and asked is not None:
            meta_judge(recipe.meta_judge, asked, recipe.seed)
    with found.problem():
        limit = head(recipe.data.limit_train_batches, recipe.self_rewarding.global_batch_size)
        wanted = rule_of(recipe.verifier, judge=True)
        prompts = open_prompts(files.train, recipe.data, source.tokenizer, wanted, limit)
        if recipe.verifier is not None:
            _reward(recipe.verifier, prompts.first(_ANSWERS), prompts, found)
        rules = self_rewarding_rules(recipe, prompts, source)
        if recipe.new_prompts is not None:
            request_of(recipe, recipe.new_prompts, prompts, source)
        if recipe.self_rewarding.first_iteration_sft:
            open_own_answers(files.demonstrations, recipe, source, limit)
        held_out = open_held_out(recipe, files, source)
        validates = any(known_rows(recipe, files)) or held_out is not None
        found.say("step", self_rewarding_arithmetic(recipe, prompts, rules))
        found.say("run", _course(recipe, self_rewarding_extent(recipe, rules).steps, validates))


def _prompts(
    recipe: PolicyGradientRecipe,
    judge: RewardSection | None,
    files: Files,
    limit: Head,
    source: Source,
    found: Findings,
) -> Prompts | None:
    with found.problem():
        return open_prompts(files, recipe.data, source.tokenizer, rule_of(judge), limit)
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
        case _:
            assert_never(section.type)


def _answers(reward: MathReward, first: Sequence[Prompt], rows: Prompts, found: Findings) -> None:
    answers = [rows.answer(prompt) for prompt in first]
    verdicts = reward(first, answers, answers)
    wrong = next((prompt.id for prompt, verdict in zip(first, verdicts, strict=True) if verdict == 0.0), None)
    if wrong is not None:
        found.notes.append(f"{wrong}: its right answer, given as a response, is worth 0; is reward.marker in it?")
    found.say("reward", f"math; the right answers of the first {len(first)} rows can be read")


def _supervised(
    recipe: SFTRecipe | DPORecipe | RewardModelRecipe,
    size: int,
    what: str,
    files: DataFiles,
    source: Source,
    found: Findings,
) -> None:
    """What learns from rows as they are: demonstrations, or pairs of answers."""
    with found.problem():
        data = recipe.data
        held_out = files.validation and _learned(recipe, files.validation, head(data.limit_val_batches, size), source)
        rows = _learned(recipe, files.demonstrations, head(data.limit_train_batches, size), source)
        extent = extent_of(recipe, len(rows), size)
        found.say("data", f"{_count(rows, what)}, {_count(held_out, what) if held_out else 'none'} to validate on")
        found.say("step", f"{size} {what} → 1 optimizer step")
        found.say("micro-batches", _micro_batches(recipe))
        found.say("run", _course(recipe, extent.steps, held_out is not None))


def _learned(
    recipe: SFTRecipe | DPORecipe | RewardModelRecipe, files: Files, limit: Head, source: Source
) -> Demonstrations | Pairs:
    match recipe:
        case SFTRecipe():
            return open_demonstrations(files, recipe.data, source, recipe.sft.max_tokens, "sft.max_tokens", limit)
        case DPORecipe() | RewardModelRecipe():
            return open_pairs(files, recipe, source, limit)
        case _:
            assert_never(recipe)


def _count(rows: Prompts | Demonstrations | Pairs, what: str) -> str:
    return f"{len(rows):,} {what} ({rows.selection.account})"


def _micro_batches(recipe: TrainingRecipe) -> str:
    """The most that an optimizer step can need, when every sequence is as long as it may be."""
    learner, load = recipe.learner, Load.of(recipe)
    what = "longest sequences" if load.group == 1 else "longest pairs"
    return (
        f"at most {load.passes(learner, load.rows)} per optimizer step and rank, of {learner.micro_batch_tokens:,} "
        f"tokens: {load.together(learner)} of the {what} ({load.shortest} tokens)"
    )


def _course(recipe: TrainingRecipe, steps: int, validates: bool) -> str:
    every, saves = recipe.run.validate_every, -(-steps // recipe.run.save_every)
    validations = len({0, steps, *(range(every, steps, every) if every else ())}) if validates else 0
    kept = min(saves, recipe.run.keep)
    newest = f"checkpoints: {saves}, of which the newest are kept: {kept}"
    return f"steps: {steps}; validations: {validations}; {newest}"
