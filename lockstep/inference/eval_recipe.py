"""The recipes and options of `lockstep eval MODEL DATA`, for models and judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from lockstep.config import registry
from lockstep.config.loading import LoadedRecipe, read_tree
from lockstep.config.machinery import ClusterSection, Computation, EngineSection, SamplerSection
from lockstep.config.model_recipe import ModelCommand, find_weights_folder
from lockstep.config.recipe import Recipe
from lockstep.config.sampling import RepeatedSampling, ResponseEnd, Sampling, TokenPenalties
from lockstep.config.section import rule
from lockstep.config.sources import DataPaths, DataSection, ModelFolder, QuestionSection
from lockstep.data.ranked_options import RankedSection
from lockstep.environments.options import EnvironmentSection
from lockstep.inference.run_options import ResultsRun
from lockstep.judge.options import ComparisonSection, JudgeSection
from lockstep.rewards.options import RewardSection
from lockstep.system.paths import expand_path


class EvalData(QuestionSection):
    """The rows of an evaluation."""

    validation: DataPaths = Field(description="evaluation file, or a list of files")

    @property
    def in_order(self) -> DataSection:
        """The same rows as a data section, in the order of the file."""
        return self.as_data(self.validation, self.answer, self.max_validation_samples)


class GreedySampling(TokenPenalties, ResponseEnd):
    """Greedy decoding: one response per question."""

    @property
    def as_sampling(self) -> Sampling:
        """Greedy decoding as a sampling distribution."""
        return Sampling(temperature=0.0, **self.model_dump())


class EvalRecipe(Recipe):
    """`algorithm: eval`"""

    command = "eval MODEL DATA --recipe {recipe}"
    seed: int = 0
    model: ModelFolder
    data: EvalData
    reward: RewardSection | None = Field(
        default=None, description="reward of responses; null: the environment's reward"
    )
    environment: EnvironmentSection | None = Field(
        default=None, description="environment that replies to responses until the episode ends"
    )
    greedy: GreedySampling | None = Field(default=None, description="null: no greedy responses")
    sampling: RepeatedSampling | None = Field(
        default=None, description="null: no sampled responses"
    )
    sampler: EngineSection = SamplerSection()
    learner: Computation = Computation()
    cluster: ClusterSection = ClusterSection()
    run: ResultsRun = ResultsRun()

    @property
    def folder(self) -> str | None:
        return self.run.folder

    @rule
    def _something_is_asked(self) -> None:
        if self.greedy is None and self.sampling is None:
            raise ValueError("greedy and sampling are both null; set at least one")
        if self.reward is None and self.environment is None:
            raise ValueError(
                "nothing scores the responses; set reward, or an environment with rewards"
            )
        if self.environment is not None:
            self.environment.require_judge(self.reward)
        settings = {"greedy": self.greedy and self.greedy.as_sampling, "sampling": self.sampling}
        penalizing: list[str] = []
        for name, own in settings.items():
            if own and own.params().counts_response:
                penalizing.append(name)
        if self.environment is not None and penalizing:
            raise ValueError(
                f"{penalizing[0]}.presence_penalty and frequency_penalty apply to one response, "
                "but an episode has several; leave them at 0 with an environment"
            )
        for key, leaf in self.reward.leaf_sections("reward") if self.reward is not None else ():
            if leaf.judge is not None and leaf.judge.path is None and leaf.judge.has_engine:
                raise ValueError(
                    f"{key}.judge: null means a run's initial model, which eval does not have; "
                    f"set {key}.judge.path, or set {key}.judge.sampler to a server"
                )
        if self.sampling is not None and self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0; use the section greedy for greedy responses"
            )


class EvalJudgeRecipe(Recipe):
    """`algorithm: eval_judge`"""

    command = "eval MODEL DATA --recipe {recipe}"
    seed: int = Field(default=0, description="key of every random number")
    data: RankedSection
    judge: JudgeSection
    pairs: ComparisonSection | None = Field(
        default=None,
        description=("also compare responses in pairs, in both orders; null: no comparison"),
    )
    learner: Computation = Computation()
    cluster: ClusterSection = ClusterSection()
    run: ResultsRun = ResultsRun()

    @property
    def folder(self) -> str | None:
        return self.run.folder

    @rule
    def _require_judge(self) -> None:
        if self.judge.path is None and self.judge.sampler is None:
            raise ValueError(
                "no policy is available to judge; set judge.path, or set judge.sampler to a server"
            )


def eval_recipe(
    model: str,
    data: str,
    overrides: Sequence[str] = (),
    recipe: str | None = None,
    folder: str | None = None,
) -> LoadedRecipe:
    """Resolves an evaluation of a model's answers, or of a judge if the recipe has one.

    The reward or judge can come from a run. Arguments and errors: `ModelCommand.resolve_recipe`; a
    judge's model can be a server's address, `http://…/v1`.
    """
    if (
        recipe is None
        or registry.find_algorithm(str(read_tree(recipe).get("algorithm"))) is not EvalJudgeRecipe
    ):
        if _is_address(model):
            expand_path(model)  # raises
        return _EVAL.resolve_recipe(model, data, overrides, recipe, folder)
    # with the judge of a run if the model is a run
    begin = None if recipe == _EVAL_JUDGE.recipe else recipe
    loaded = _EVAL_JUDGE.resolve_recipe(model, data, overrides, begin, folder)
    sampler = loaded.expect_recipe(EvalJudgeRecipe).judge.sampler
    served = None if sampler is None else sampler.openai
    if served is None:
        return loaded
    return replace(loaded, name=f"{served.model.replace('/', '-')}-{Path(data).stem}")


def _derive_sampling(tree: dict[str, Any], room: dict[str, int] | None) -> dict[str, Any]:
    """The distributions of a run's validation; without one, the length of its demonstrations."""
    validation = tree.get("validation_sampling")
    if validation is not None:
        greedy = {name: validation[name] for name in GreedySampling.model_fields}
        if not validation["temperature"]:
            return {"greedy": greedy, "sampling": greedy}
        sampled = {name: validation[name] for name in Sampling.model_fields}
        return {"greedy": greedy, "sampling": sampled}
    if room is None:
        return {}
    return {"greedy": room, "sampling": room}


_EVAL = ModelCommand(
    "eval",
    EvalRecipe,
    "eval_gsm8k",
    "validation",
    ("seed", "reward", "environment", "sampler"),
    QuestionSection,
    _derive_sampling,
)


def _is_address(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def _name_judge(model: str) -> dict[str, Any]:
    if _is_address(model):
        return {
            "judge": {"path": None, "sampler": {"backend": "openai", "openai": {"base_url": model}}}
        }
    return {"judge": {"path": str(find_weights_folder(model))}}


_EVAL_JUDGE = ModelCommand(
    "eval",
    EvalJudgeRecipe,
    "eval_judge",
    "ranked",
    ("seed", "judge"),
    None,
    lambda tree, room: {},
    _name_judge,
)
