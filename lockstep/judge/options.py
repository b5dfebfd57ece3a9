"""The options of a judge: its model, its question, and how replies become scores."""

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
"""Lowest and highest score of the built-in rubric."""


def _require_expression(pattern: str) -> str:
    """Returns the pattern; raises ValueError for an invalid regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression ({error})") from error
    return pattern


RegexPattern = Annotated[str, AfterValidator(_require_expression)]


class AskedSection(Section):
    """The model or server that judges, and its options; shared by all kinds of judges."""

    path: ModelPath | None = Field(
        default=None,
        description=(
            "folder of the judge model, or hf:owner/name; null: the policy itself; with a "
            "server: folder with its tokenizer, null: none, so lengths are not checked"
        ),
    )
    sampler: SamplerSection | None = Field(
        default=None,
        description=(
            "inference engine of the model in `path`, or the server; null: the torch sampler"
        ),
    )
    chat: bool = Field(default=True, description="apply the judge's chat template to the prompt")
    system_prompt: str | None = Field(default=None, description="system message; requires `chat`")
    template_args: TemplateArgs = Field(
        default={},
        description="arguments of the judge's chat template, such as {enable_thinking: false}",
    )
    sampling: Sampling
    max_prompt_tokens: PositiveInt = Field(
        description=("longest prompt; longer ones are handled by `overlong_judge_prompts`")
    )
    overlong_judge_prompts: Literal["drop", "truncate_response"] = Field(
        default="drop",
        description=(
            "handling of longer prompts: no verdict, or truncate the response to fit if "
            "at least half remains; both are counted"
        ),
    )
    unfinished_judgments: Literal["no_verdict", "read"] = Field(
        default="no_verdict", description="handling of a reply truncated by sampling.max_tokens"
    )
    max_no_verdict_rate: Probability = Field(
        default=0.5,
        description="stop if a larger share of the judgments in a batch has no verdict",
    )

    @property
    def truncates_responses(self) -> bool:
        """True if a response is truncated when the question is too long."""
        match self.overlong_judge_prompts:
            case "drop":
                return False
            case "truncate_response":
                return True
            case _:
                assert_never(self.overlong_judge_prompts)

    @property
    def reads_unfinished(self) -> bool:
        """True if a truncated reply can have a verdict."""
        match self.unfinished_judgments:
            case "no_verdict":
                return False
            case "read":
                return True
            case _:
                assert_never(self.unfinished_judgments)

    @property
    def is_policy(self) -> bool:
        """True if the policy itself judges."""
        return self.path is None and self.sampler is None

    @property
    def has_engine(self) -> bool:
        """True if a model in a folder judges, in a separate engine."""
        return self.path is not None and not self.engine_section.is_server

    @property
    def engine_section(self) -> SamplerSection:
        """The engine of the model in `path`, or the server."""
        if self.sampler is None:
            return SamplerSection()
        return self.sampler

    @rule
    def _a_judge_has_one_engine(self) -> None:
        served = self.sampler is not None and self.sampler.is_server
        if self.sampler is not None and self.path is None and not served:
            raise ValueError(
                "without path, the policy judges with its own sampler; set path to use a "
                "different model, or remove sampler"
            )
        if served and self.sampling.stop:
            raise ValueError("sampling.stop is not supported with a server; leave it out")
        if served and not self.chat:
            raise ValueError("a server always applies its chat template; leave chat at true")
        if self.system_prompt is not None and not self.chat:
            raise ValueError("system_prompt needs chat: true")
        if self.template_args and (served or not self.chat):
            raise ValueError("template_args requires chat: true and is not supported with a server")


class JudgeSection(AskedSection):
    """An LLM that scores responses."""

    template: str | None = Field(
        default=None,
        description=(
            "the judge prompt, with {prompt} and {response}; null: an additive five-point rubric"
        ),
    )
    num_evals_to_average: PositiveInt = Field(
        default=3,
        description=(
            "judgments per response; its score is their mean, without those that have no verdict"
        ),
    )
    judge_score_low: float = Field(default=SCALE[0], description="lowest valid score")
    judge_score_high: float = Field(default=SCALE[1], description="highest valid score")
    decimals: bool = Field(
        default=True, description=("whether scores may have decimals, such as 3.5")
    )
    score_pattern: RegexPattern = Field(
        default="score|points",
        description=(
            "regular expression for the word before the colon and the score; the last match counts"
        ),
    )

    @rule
    def _scores_differ(self) -> None:
        if self.judge_score_low >= self.judge_score_high:
            raise ValueError("judge_score_low must be below judge_score_high")
        if self.template is None and (self.judge_score_low, self.judge_score_high) != SCALE:
            raise ValueError(
                "the default template scores from 0 to 5; set template to use a different scale"
            )
        if self.sampling.temperature == 0 and self.num_evals_to_average > 1:
            raise ValueError(
                "num_evals_to_average must be 1 if sampling.temperature is 0, since all judgments "
                "would be equal"
            )


class ComparisonSection(Section):
    """An LLM that decides which of two is better."""

    template: str | None = Field(
        default=None,
        description=(
            "the judge prompt, with {prompt}, {response_a} and {response_b} for two "
            "responses, or {prompt}, {response}, {judgement_a} and {judgement_b} for two "
            "judgments; null: the default"
        ),
    )
    winner_pattern: RegexPattern = Field(
        default="winner",
        description=(
            "regular expression for the word before the colon and A or B; the last match counts"
        ),
    )


class MetaJudgeSection(AskedSection, ComparisonSection):
    """An LLM that decides which of two judgments is better."""

    battles: Literal["order_consistency", "position"] = Field(
        default="order_consistency",
        description=(
            "compare each pair of judgments in both orders; a win counts if both agree, "
            "or is down-weighted in the position that wins more often"
        ),
    )
    max_judgment_tokens: PositiveInt | None = Field(
        default=None, description="longest judgment that can be preferred; null: no limit"
    )
