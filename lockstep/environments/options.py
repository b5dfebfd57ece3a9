"""The options of multi-turn episodes."""

from __future__ import annotations

from typing import Literal, assert_never

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.config.section import LocalPath, Probability, Section, rule

ToolFormat = Literal["hermes", "llama3_json"]
"""Formats in which models write tool calls."""


class EnvironmentSection(Section):
    """The environment that answers the policy's responses until the episode ends."""

    class_name: LocalPath | None = Field(
        default=None,
        description="file.py:Class or package.module:Class, with reset(row, seed) and "
        "step(response) → (observation, reward, done)",
    )
    command: str | None = Field(
        default=None,
        description=(
            "instead of a class: a program that asks the policy through the address in "
            "OPENAI_BASE_URL, and prints its answer; it gets the row as JSON on its standard input"
        ),
    )
    agent: LocalPath | None = Field(
        default=None,
        description=(
            "instead of a class: file.py:function, called with the row in a process of its own; "
            "it asks as a program does, and returns its answer"
        ),
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
        default=30.0,
        description="time limit of a call of the environment, or of an agent's whole episode",
    )
    max_concurrency: PositiveInt = Field(
        default=1, description="number of environment processes, or of agents that run at once"
    )
    max_no_verdict_rate: Probability = Field(
        default=0.5,
        description=("stop if the environment fails in a larger share of a batch's episodes"),
    )

    @property
    def is_agent(self) -> bool:
        """True if a program or function asks the policy, instead of a class that answers it."""
        return self.class_name is None

    @property
    def reference(self) -> str:
        """The option that is set, and its value."""
        names = ("class_name", "command", "agent")
        name, value = next((name, getattr(self, name)) for name in names if getattr(self, name))
        return f"environment.{name} {value}"

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        if self.is_agent:
            idle["stop"] = "with an agent, whose requests have their own stop strings"
            idle["tool_format"] = "with an agent, whose requests declare its tools"
        return idle

    @rule
    def _one_kind_is_set(self) -> None:
        if len(list(filter(None, (self.class_name, self.command, self.agent)))) != 1:
            raise ValueError("set exactly one of class_name, command and agent")
        if self.command is not None and not self.command.strip():
            raise ValueError("command is empty; set it to a program and its arguments")

    def require_judge(self, reward: object) -> None:
        """Raises ValueError if an agent's answers have no reward."""
        if self.is_agent and reward is None:
            raise ValueError(
                "an agent does not reward itself; set reward, such as a verifier, which judges "
                "its answer"
            )

    def require_no_penalty(self, section: str, repetition_penalty: float) -> None:
        """Raises ValueError if an agent's requests would be penalized for earlier tokens."""
        if self.is_agent and repetition_penalty != 1.0:
            raise ValueError(
                f"{section}.repetition_penalty is not supported with an agent; leave it at 1"
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
