"""The options of episodes: responses and observations by turns."""

from __future__ import annotations

from typing import Literal, assert_never

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.config.section import LocalPath, Probability, Section

ToolFormat = Literal["hermes", "llama3_json"]
"""Syntaxes in which models write tool calls."""


class EnvironmentSection(Section):
    """The environment that answers the policy's responses, until the episode ends."""

    class_name: LocalPath = Field(
        description="file.py:Class or package.module:Class, with reset(row, seed) and "
        "step(response) → (observation, reward, done)"
    )
    stop: tuple[str, ...] = Field(
        default=(),
        description="tokens that end a turn, besides those that end a response, so that what the "
        "environment says follows them at once; each must be one token",
    )
    tool_format: ToolFormat | None = Field(
        default=None,
        description="how the model writes calls of the tools that the class declares: hermes, "
        "<tool_call>{…}</tool_call> (Qwen, Hermes), or llama3_json, a response of "
        "JSON alone (Llama 3); null: it declares none",
    )
    seed: Literal["group", "episode"] = Field(
        default="group",
        description="all responses to one prompt get the same seed, so that they are compared in "
        "the same world; or each its own",
    )
    max_turns: PositiveInt = Field(
        default=8, description="responses of an episode; a longer one is truncated"
    )
    max_tokens: PositiveInt = Field(
        description="longest episode, observations included; it is truncated where no room is "
        "left for a response of sampling.max_tokens"
    )
    pass_score: float | None = Field(
        default=None,
        description=(
            "where the environment rewards: a held-out episode passes with this; null: no pass@k"
        ),
    )
    timeout_s: PositiveFloat = Field(
        default=30.0, description="an environment that takes longer over a call is ended"
    )
    max_concurrency: PositiveInt = Field(default=1, description="processes that share the episodes")
    max_no_verdict_rate: Probability = Field(
        default=0.5,
        description=(
            "stop where the environment fails in a larger share of the episodes of one batch"
        ),
    )

    @property
    def shares_seed(self) -> bool:
        """True if the responses to one prompt get the same seed."""
        match self.seed:
            case "group":
                return True
            case "episode":
                return False
            case _:
                assert_never(self.seed)

    def require_room(self, section: str, max_tokens: int) -> None:
        """Raises ValueError if not even one response fits."""
        if max_tokens > self.max_tokens:
            raise ValueError(
                f"{section}.max_tokens={max_tokens} is of one response, and "
                f"environment.max_tokens={self.max_tokens} "
                "of a whole episode; raise that, or lower the other"
            )
