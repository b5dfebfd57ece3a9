"""The options of an evaluation of a judge."""

from __future__ import annotations

from pydantic import Field

from lockstep.config.machinery import ClusterSection, Computation
from lockstep.config.recipe import Recipe
from lockstep.config.section import rule
from lockstep.data.ranked_options import RankedSection
from lockstep.inference.run_options import ResultsRun
from lockstep.judge.options import ComparisonSection, JudgeSection


class EvalJudgeRecipe(Recipe):
    """`algorithm: eval_judge`"""

    command = "eval MODEL DATA --recipe {recipe}"
    seed: int = Field(default=0, description="key of every random number")
    data: RankedSection
    judge: JudgeSection
    pairs: ComparisonSection | None = Field(
        default=None, description="let the judge compare responses, too, two at a time and in both orders; null: do not"
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
                "there is no policy here that could judge; set judge.path, or name a server by judge.sampler"
            )
