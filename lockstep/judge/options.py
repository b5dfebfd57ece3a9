"""The options of a judge: its model, its question, and how a reply becomes a score."""

from __future__ import annotations

import re
from typing import Annotated, Literal, assert_never

from pydantic import AfterValidator, Field, PositiveInt

from lockstep.config.hub_name import ModelPath
from lockstep.config.machinery import SamplerSection
from lockstep.config.sampling import Sampling
from lockstep.config.section import Probability, Section, rule
from lockstep.config.sources import TemplateArgs

SCALE = (0.0, 5.0)
"""Scores of the rubric that ships, lowest and highest."""


def _require_expression(pattern: str) -> str:
    """Returns the pattern; raises ValueError where it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
    return pattern


Expression = Annotated[str, AfterValidator(_require_expression)]


class AskedSection(Section):
    """The model or server that is asked to judge, and how; for judges of every kind."""

    path: ModelPath | None = Field(
        default=None,
        description="folder of the model that judges, or hf:owner/name; null: the policy itself, "
        "or, where a server "
        "judges, no folder with its tokenizer, so that nothing is known about lengths",
    )
    sampler: SamplerSection | None = Field(
        default=None,
        description=(
            "inference engine of the model in `path`, or the server; null: sampler of torch"
        ),
    )
    chat: bool = Field(
        default=True, description="put the question through the judge's chat template"
    )
    system_prompt: str | None = Field(default=None, description="system message, with `chat`")
    template_args: TemplateArgs = Field(
        default={},
        description="arguments of the judge's chat template, as {enable_thinking: false}",
    )
    sampling: Sampling
    max_prompt_tokens: PositiveInt = Field(description="a longer question is over-long")
    overlong_judge_prompts: Literal["drop", "truncate_response"] = Field(
        default="drop",
        description="what to do with them: no verdict, or show the judge only as much of the "
        "response as fits, if that is at least half of it; both are counted",
    )
    unfinished_judgements: Literal["no_verdict", "read"] = Field(
        default="no_verdict", description="what becomes of a reply that sampling.max_tokens cut off"
    )
    max_no_verdict_rate: Probability = Field(
        default=0.5,
        description="stop where more of the judgements that are asked for at once have no verdict",
    )

    @property
    def truncates_responses(self) -> bool:
        """True if a response is cut where the question is over-long."""
        match self.overlong_judge_prompts:
            case "drop":
                return False
            case "truncate_response":
                return True
            case _:
                assert_never(self.overlong_judge_prompts)

    @property
    def reads_unfinished(self) -> bool:
        """True if a reply that was cut off can have a verdict."""
        match self.unfinished_judgements:
            case "no_verdict":
                return False
            case "read":
                return True
            case _:
                assert_never(self.unfinished_judgements)

    @property
    def is_policy(self) -> bool:
        """True if the policy judges, where there is one."""
        return self.path is None and self.sampler is None

    @property
    def has_engine(self) -> bool:
        """True if a model in a folder judges, in an engine of its own."""
        return self.path is not None and not self.engine.is_server

    @property
    def engine(self) -> SamplerSection:
        """The engine of the model in `path`, or the server."""
        if self.sampler is None:
            return SamplerSection()
        return self.sampler

    @rule
    def _a_judge_has_one_engine(self) -> None:
        served = self.sampler is not None and self.sampler.is_server
        if self.sampler is not None and self.path is None and not served:
            raise ValueError(
                "the policy judges with its own sampler; set path to let another model judge, or "
                "no sampler"
            )
        if served and self.sampling.stop:
            raise ValueError(
                "sampling.stop: a server ends replies by itself; leave stop strings out"
            )
        if served and not self.chat:
            raise ValueError(
                "a server puts every question through its chat template; leave chat on"
            )
        if self.system_prompt is not None and not self.chat:
            raise ValueError("system_prompt needs chat: true")
        if self.template_args and (served or not self.chat):
            raise ValueError(
                "template_args are of a chat template that this program applies; set chat: true, "
                "and leave them out if a server judges"
            )


class JudgeSection(AskedSection):
    """An LLM that scores responses."""

    template: str | None = Field(
        default=None,
        description=(
            "the question, with {prompt} and {response} where they go; null: an additive "
            "rubric of five points"
        ),
    )
    num_evals_to_average: PositiveInt = Field(
        default=3,
        description="judgements of each response; its score is the mean of those with a verdict",
    )
    judge_score_low: float = Field(default=SCALE[0], description="lowest valid score")
    judge_score_high: float = Field(default=SCALE[1], description="highest valid score")
    decimals: bool = Field(default=True, description="whether 3.5 is a valid score")
    score_pattern: Expression = Field(
        default="score|points",
        description=(
            "regular expression of the word before the colon that announces the score; "
            "the last one counts"
        ),
    )

    @rule
    def _scores_differ(self) -> None:
        if self.judge_score_low >= self.judge_score_high:
            raise ValueError("judge_score_low must be below judge_score_high")
        if self.template is None and (self.judge_score_low, self.judge_score_high) != SCALE:
            raise ValueError(
                "the rubric that ships counts from 0 to 5; another scale needs a template of yours"
            )
        if self.sampling.temperature == 0 and self.num_evals_to_average > 1:
            raise ValueError(
                "sampling.temperature 0 gives the same judgement every time, so "
                "num_evals_to_average must be 1"
            )


class ComparisonSection(Section):
    """An LLM that says which of two is better."""

    template: str | None = Field(
        default=None,
        description="the question, with {prompt}, {response_a} and {response_b} for two "
        "responses, and {prompt}, "
        "{response}, {judgement_a} and {judgement_b} for two judgements; null: the one that ships",
    )
    winner_pattern: Expression = Field(
        default="winner",
        description=(
            "regular expression of the word before the colon that announces A or B; the "
            "last one counts"
        ),
    )


class MetaJudgeSection(AskedSection, ComparisonSection):
    """An LLM that says which of two judgements is better."""

    battles: Literal["order_consistency", "position"] = Field(
        default="order_consistency",
        description="each two judgements are shown in both orders; a win counts if both agree, or "
        "weighs less in the place that wins more often",
    )
    max_judgement_tokens: PositiveInt | None = Field(
        default=None, description="a judgement that is longer is not preferred; null: any may be"
    )
