"""Setup of algorithms that learn from their own rollouts, sampled in order or one step ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lockstep.algorithms.job import Checkpointable, Hook, Job, Step, StepResult
from lockstep.algorithms.opening import (
    REWARD_CUT_OFF,
    CutOffNote,
    build_agreement,
    build_engine,
    describe,
    describe_updates,
    measure_answers,
    measure_run_length,
    open_held_out,
    open_reward,
    open_training,
    validate_figures,
)
from lockstep.algorithms.policy_gradient.ahead import Ahead
from lockstep.algorithms.policy_gradient.options import PolicyGradientRecipe
from lockstep.algorithms.policy_gradient.step import (
    PolicyGradientWorkers,
    SampledStep,
    Settings,
)
from lockstep.algorithms.setup import Setup
from lockstep.monitor.agreement import Agreement
from lockstep.rollouts.rollout import RolloutCollector


@dataclass(frozen=True)
class AlgorithmParts:
    """The parts that one of these algorithms adds.

    Attributes:
        settings: Its options, as values.
        step: A whole iteration.
        learn: The part of an iteration after sampling.
        version: Version of the policy's weights after a number of steps.
        state: Its additions to a checkpoint.
    """

    settings: Settings
    step: Step
    learn: Callable[[int, SampledStep], StepResult]
    version: Callable[[int], int] = int
    state: Mapping[str, Checkpointable] = field(default_factory=dict)


def open_policy_gradient(
    recipe: PolicyGradientRecipe, setup: Setup, program: Callable[[PolicyGradientWorkers], AlgorithmParts]
) -> Job:
    """Opens models, environment, prompts and rewards; `program` builds the algorithm's own step from them."""
    options, size = recipe.options, recipe.options.num_prompts_per_step
    policy = setup.learner(recipe.policy_role)
    reference = None if recipe.reference_role is None else setup.learner(recipe.reference_role)
    episodes = setup.episodes(recipe.environment, recipe.episode_judge)
    if episodes is not None:
        recipe = recipe.model_copy(update={"data": recipe.data.with_tools(episodes.tools)})
    abandon: Callable[[], None] | None = None
    if options.one_step_ahead:
        sampler, abandon = setup.sampler_beside()
    else:
        sampler = setup.sampler(policy)
    engine = build_engine(setup, policy, sampler)
    judge = recipe.validation_reward or recipe.reward
    held_out = setup.attempt(lambda: open_held_out(recipe, setup, judge), None)
    rows = open_training(recipe, setup, recipe.reward)
    reward = open_reward(setup, recipe.reward_role, recipe.reward, rows, "reward")
    best = _find_best_reward(recipe)
    collector = RolloutCollector(engine, rows, reward, setup.source.decode, recipe.seed, episodes, best)
    agreement = build_agreement(recipe, setup, policy, engine, f"{recipe.section}.correction weighs it")
    workers = PolicyGradientWorkers(
        policy=policy,
        reference=reference,
        collector=collector,
        phase=setup.phase,
        agreement=agreement if abandon is None else None,
    )
    its = program(workers)
    environment = None if recipe.reward_model is not None else recipe.environment
    asked, own = recipe.validation_sampling, recipe.validation_reward
    measure = measure_answers(recipe, setup, held_out, collector, asked, recipe.reward, environment, own)
    job = Job(
        step=its.step,
        run_length=measure_run_length(recipe, len(rows), size),
        state={"policy": policy, **its.state, **_coefficient(its.settings)},
        validate=validate_figures(measure, its.version),
        data=describe(rows, "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        arithmetic=_arithmetic(recipe),
        agreement=agreement,
        hooks=_warn_of_cut_off(recipe, setup),
    )
    return job if abandon is None else _one_step_ahead(job, its, workers, agreement, abandon, setup)


def _warn_of_cut_off(recipe: PolicyGradientRecipe, setup: Setup) -> tuple[Hook, ...]:
    """A note for recipes that say nothing of responses that are cut off."""
    options = recipe.options
    if options.overlong_filtering or options.truncation_penalty or options.overlong_penalty is not None:
        return ()
    own = f"{recipe.section}.overlong_filtering=true or {recipe.section}.truncation_penalty"
    return (CutOffNote(setup.note, REWARD_CUT_OFF if recipe.reward_model is None else own),)


def _find_best_reward(recipe: PolicyGradientRecipe) -> float | None:
    """The mean reward of the best policy, if the recipe's task declares it of what rewards here."""
    if recipe.data.task is None or recipe.reward_model is not None:
        return None
    if recipe.reward is not None:
        return recipe.data.task.find_best_reward(recipe.reward.function)
    return recipe.data.task.find_best_reward(None if recipe.environment is None else recipe.environment.class_name)


def _coefficient(settings: Settings) -> dict[str, Checkpointable]:
    """The KL coefficient, where it is adaptive and so part of a checkpoint."""
    return {} if settings.kl is None or settings.kl.adaptive is None else {"kl": settings.kl}


def _one_step_ahead(
    job: Job,
    its: AlgorithmParts,
    workers: PolicyGradientWorkers,
    agreement: Agreement,
    abandon: Callable[[], None],
    setup: Setup,
) -> Job:
    ahead = Ahead(workers, its.settings, agreement, its.learn, its.version, job.run_length, setup.beside, abandon)
    return replace(job, step=ahead, state={**job.state, "ahead": ahead})


def _arithmetic(recipe: PolicyGradientRecipe) -> str:
    """Describes how prompts become optimizer steps."""
    its = recipe.options
    return (
        f"{its.num_prompts_per_step} prompts × {its.num_generations} = {its.responses} responses → "
        f"{describe_updates(its.updates)} of {its.global_batch_size} responses"
    )
