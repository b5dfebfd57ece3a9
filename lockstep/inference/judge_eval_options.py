"""The options of `lockstep judge-eval`."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from lockstep.config.judge import ComparisonSection, JudgeSection
from lockstep.config.machinery import ClusterSection, Computation
from lockstep.config.ranked import RankedSection
from lockstep.config.recipe import Recipe
from lockstep.config.section import LocalPath, Section, rule


class JudgeEvalRun(Section):
    """Folder of the results, and block size."""

    folder: LocalPath | None = Field(
        default=None, description="folder of the results; null: judge-evals/<model>-<data>-<hash of all that matters>"
    )
    save_every: PositiveInt = Field(
        default=16, description="prompts whose responses are judged and written together; a stop loses no more"
    )


class JudgeEvalRecipe(Recipe):
    """`algorithm: judge_eval`"""

    command = "judge-eval MODEL DATA --recipe {recipe}"
    seed: int = Field(default=0, description="key of every random number")
    data: RankedSection
    judge: JudgeSection
    pairs: ComparisonSection | None = Field(
        default=None, description="let the judge compare responses, too, two at a time and in both orders; null: do not"
    )
    learner: Computation = Computation()
    cluster: ClusterSection = ClusterSection()
    run: JudgeEvalRun = JudgeEvalRun()

    @property
    def folder(self) -> str | None:
        return self.run.folder

    @rule
    def _require_judge(self) -> None:
        if self.judge.path is None and self.judge.sampler is None:
            raise ValueError(
                "there is no policy here that could judge; set judge.path, or name a server by judge.sampler"
            )
