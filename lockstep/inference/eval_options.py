"""The options of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from lockstep.config.machinery import ClusterSection, Computation, EngineSection, SamplerSection
from lockstep.config.recipe import Recipe
from lockstep.config.sampling import Penalties, RepeatedSampling, ResponseEnd, Sampling
from lockstep.config.section import rule
from lockstep.config.sources import DataSection, ModelFolder, Paths, QuestionSection
from lockstep.environments.options import EnvironmentSection
from lockstep.inference.run_options import ResultsRun
from lockstep.rewards.options import RewardSection


class EvalData(QuestionSection):
    """The rows of an evaluation."""

    validation: Paths = Field(description="file to evaluate on, or a list of files")

    @property
    def in_order(self) -> DataSection:
        """The same rows as a data section, in the order of the file."""
        return self.as_data(self.validation, self.answer, self.max_validation_samples)


class Greedy(Penalties, ResponseEnd):
    """One response per question, each token the likeliest."""

    @property
    def sampling(self) -> Sampling:
        """The same as a distribution."""
        return Sampling(temperature=0.0, **self.model_dump())


class EvalRecipe(Recipe):
    """`algorithm: eval`"""

    command = "eval MODEL DATA --recipe {recipe}"
    seed: int = 0
    model: ModelFolder
    data: EvalData
    reward: RewardSection | None = Field(default=None, description="the reward of responses; null: the environment's")
    environment: EnvironmentSection | None = Field(
        default=None, description="answers each response, until an episode has ended"
    )
    greedy: Greedy | None = Field(default=None, description="null: no greedy responses")
    sampling: RepeatedSampling | None = Field(default=None, description="null: no sampled responses")
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
            raise ValueError("greedy and sampling are both null, so there is nothing to evaluate; set one of them")
        if self.reward is None and self.environment is None:
            raise ValueError("say what responses are worth: set reward, or an environment that rewards")
        penalizing = [name for name, one in self._settings() if one.params().counts_response]
        if self.environment is not None and penalizing:
            raise ValueError(
                f"{penalizing[0]}.presence_penalty and frequency_penalty count the tokens of one response, and an "
                "episode has several; leave them at 0 with an environment"
            )
        for key, leaf in self.reward.leaves("reward") if self.reward is not None else ():
            if leaf.judge is not None and leaf.judge.path is None and leaf.judge.has_engine:
                raise ValueError(
                    f"{key}.judge: null is a run's initial model, and here is none; set {key}.judge.path, or name a "
                    f"server by {key}.judge.sampler"
                )
        if self.sampling is not None and self.sampling.temperature == 0:
            raise ValueError("sampling.temperature is 0; greedy responses have a section of their own, greedy")

    def _settings(self) -> Iterator[tuple[str, Sampling]]:
        """Yields the settings' names and distributions."""
        if self.greedy is not None:
            yield "greedy", self.greedy.sampling
        if self.sampling is not None:
            yield "sampling", self.sampling
