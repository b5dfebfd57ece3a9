"""The options of multi-turn episodes."""

from __future__ import annotations

from typing import Literal, assert_never

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.config.section import LocalPath, Probability, Section

ToolFormat = Literal["hermes", "llama3_json"]
"""Formats in which models write tool calls."""


class EnvironmentSection(Section):
    """The environment that answers the policy's responses until the episode ends."""

    class_name: LocalPath = Field(
        description="file.py:Class or package.module:Class, with reset(row, seed) and "
        "step(response) → (observation, reward, done)"
    )
    stop: tuple[str, ...] = Field(
        default=(),
        description=(
            "tokens that end a turn, in addition to stop tokens; each must be a single token"
        ),
    )
    tool_format: ToolFormat | None = Field(
        default=None,
        description=(
            "format of the model's tool calls: hermes, <tool_call>{…}</tool_call> (Qwen, "
            "Hermes), or llama3_json, a response that is only JSON (Llama 3); null: the "
            "class declares no tools"
        ),
    )
    seed: Literal["group", "episode"] = Field(
        default="group",
        description=(
            "group: all responses to a prompt share a seed, so they are compared in the "
            "same world; else one seed per response"
        ),
    )
    max_turns: PositiveInt = Field(
        default=8, description="most responses per episode; longer episodes are truncated"
    )
    max_tokens: PositiveInt = Field(
        description=(
            "longest episode, observations included; it is truncated if a response of "
            "sampling.max_tokens no longer fits"
        )
    )
    pass_score: float | None = Field(
        default=None,
        description=(
            "lowest environment reward at which a held-out episode passes; null: no pass@k"
        ),
    )
    timeout_s: PositiveFloat = Field(
        default=30.0, description="time limit of a call of the environment"
    )
    max_concurrency: PositiveInt = Field(default=1, description="number of environment processes")
    max_no_verdict_rate: Probability = Field(
        default=0.5,
        description=("stop if the environment fails in a larger share of a batch's episodes"),
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
        """Raises ValueError if no response fits."""
        if max_tokens > self.max_tokens:
            raise ValueError(
                f"{section}.max_tokens={max_tokens} per response exceeds "
                f"environment.max_tokens={self.max_tokens} per episode; raise the latter or lower "
                "the former"
            )
