"""Setup of algorithms that train on their own rollouts, sampled in order or one step ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lockstep.algorithms.job import Checkpointable, Job, StepResult
from lockstep.algorithms.opening import (
    describe,
    measure_run_length,
    open_sampling,
)
from lockstep.algorithms.policy_gradient.ahead import OneStepAhead
from lockstep.algorithms.policy_gradient.options import PolicyGradientRecipe
from lockstep.algorithms.policy_gradient.step import (
    AnyPolicySettings,
    PolicyGradientWorkers,
    SampledStep,
    sample_step,
)
from lockstep.algorithms.setup import Setup
from lockstep.rollouts.episodes import EpisodeRunner


@dataclass(frozen=True)
class AlgorithmParts:
    """The algorithm-specific parts.

    Attributes:
        settings: The recipe, and the values that a step computes with.
        learn: The part of an iteration after sampling.
        version: Returns the version of the policy's weights after a number of steps.
        state: Additional checkpoint state.
    """

    settings: AnyPolicySettings
    learn: Callable[[int, SampledStep], StepResult]
    version: Callable[[int], int] = int
    state: Mapping[str, Checkpointable] = field(default_factory=dict)


def open_policy_gradient(
    recipe: PolicyGradientRecipe,
    setup: Setup,
    build_parts: Callable[[PolicyGradientWorkers], AlgorithmParts],
) -> Job:
    """Opens models, environment, prompts and rewards; `build_parts` adds the algorithm's parts."""
    options = recipe.options
    size = recipe.options.num_prompts_per_step
    policy = setup.learner(recipe.policy_role)
    if recipe.reference_role is None:
        reference = None
    else:
        reference = setup.learner(recipe.reference_role)
    episodes = setup.start_environment(recipe.environment, recipe.episode_judge)
    if isinstance(episodes, EpisodeRunner):
        recipe = recipe.model_copy(update={"data": recipe.data.with_tools(episodes.tools)})
    abandon: Callable[[], None] | None = None
    if options.one_step_ahead:
        sampler, abandon = setup.concurrent_sampler()
    else:
        sampler = setup.sampler(policy)
    sampled = open_sampling(
        recipe,
        setup,
        policy,
        sampler,
        cure=f"{recipe.section}.correction weighs it",
        episodes=episodes,
        grades=None if recipe.reward_model is not None else recipe.environment,
        best_reward=_find_best_reward(recipe),
    )
    workers = PolicyGradientWorkers(
        policy=policy,
        reference=reference,
        collector=sampled.collector,
        phase=setup.phase,
        agreement=sampled.agreement if abandon is None else None,
    )
    parts = build_parts(workers)
    held_out = sampled.held_out
    measure = sampled.validate
    validate = None if measure is None else lambda step: measure(parts.version(step))

    def run_step(step: int, position: int) -> StepResult:
        # y ~ π_old(·|x), r
        return parts.learn(
            step, sample_step(position, parts.version(step), workers, parts.settings)
        )

    job = Job(
        step=run_step,
        run_length=measure_run_length(recipe, len(sampled.rows), size),
        state={"policy": policy, **parts.state},
        validate=validate,
        data=describe(sampled.rows, "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        agreement=sampled.agreement,
    )
    kl = parts.settings.kl
    if kl is not None and kl.section.adaptive is not None:
        job = replace(job, state={**job.state, "kl": kl})
    if abandon is None:
        return job
    ahead = OneStepAhead(
        workers,
        parts.settings,
        sampled.agreement,
        parts.learn,
        parts.version,
        job.run_length,
        setup.background_phase,
        abandon,
    )
    return replace(job, step=ahead, state={**job.state, "ahead": ahead})


def _find_best_reward(recipe: PolicyGradientRecipe) -> float | None:
    """The mean reward of the best policy, if the task declares it for this recipe's reward."""
    if recipe.data.task is None or recipe.reward_model is not None:
        return None
    if recipe.reward is not None:
        return recipe.data.task.find_best_reward(recipe.reward.function)
    return recipe.data.task.find_best_reward(
        None if recipe.environment is None else recipe.environment.class_name
    )
