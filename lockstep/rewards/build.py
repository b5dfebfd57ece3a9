"""Builders of rewards from recipe sections."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.config.trust import log_code_file
from lockstep.rewards.base import CutOffReward, NoReward, Reward
from lockstep.rewards.code_reward import CodeReward, open_sandbox
from lockstep.rewards.combined_rewards import ByRow, WeightedPart, WeightedSum
from lockstep.rewards.instruction_reward import InstructionReward
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.options import RewardJudge, RewardSection, SingleReward
from lockstep.rewards.python_reward import PythonReward
from lockstep.rewards.server_reward import ServerReward

NoteFunction = Callable[[str], None]
OpenJudge = Callable[[RewardJudge, str], Reward]
"""Opens a judge as a reward, from its section and the section's key in the recipe."""


def build_reward(
    section: SingleReward | None,
    say: NoteFunction = lambda text: None,
    open_judge: OpenJudge = lambda judge, key: NoReward(),
    option: str = "reward",
) -> Reward:
    """Builds the reward of a recipe, or `NoReward` without a section.

    Args:
        section: The reward section.
        say: Shows a line on how programs are isolated, and on retries.
        open_judge: Opens a judge; by default no judge is opened, for checks without a model.
        option: Key of the section in the recipe.

    Raises:
        RewardError: Its function cannot be found.
        SandboxError: Programs cannot run in a sandbox on this machine.
    """
    if section is None:
        return NoReward()
    reward = _build_uncut_reward(section, say, open_judge, option)
    if not isinstance(section, RewardSection) or section.cut_off is None:
        return reward
    return CutOffReward(reward, None if section.cut_off == "as_is" else section.cut_off)


def _build_uncut_reward(
    section: SingleReward, say: NoteFunction, open_judge: OpenJudge, option: str
) -> Reward:
    """Builds the reward of a section, without its value for truncated responses."""
    if isinstance(section, RewardSection) and section.parts is not None:
        parts: dict[str, WeightedPart] = {}
        for name, part in section.parts.items():
            reward = build_reward(part, say, open_judge, f"{option}.parts.{name}")
            parts[name] = WeightedPart(reward, part.weight)
        return WeightedSum(parts)
    built: dict[str, Reward] = {"math": MathReward(section.marker, option)}
    if section.instructions is not None:
        built["instructions"] = InstructionReward(section.instructions)
    if section.code is not None:
        code = built["code"] = CodeReward(section.code, f"{option}.code", say)
        say(code.describe_strength())
    if section.function is not None:
        log_code_file(f"{option}.function", section.function)
        built["python"] = PythonReward(
            section.function, section.timeout_s, say, section.batch, option
        )
    if section.server is not None:
        built["server"] = ServerReward(section.server, section.timeout_s, say, f"{option}.server")
    if section.judge is not None:
        built["judge"] = open_judge(section.judge, f"{option}.judge")
    if section.verifier is None:
        return built[section.type]
    return ByRow(section.verifier, built)


def require_sandbox(section: RewardSection | None, option: str) -> None:
    """Raises SandboxError if the section needs a sandbox that is unavailable on this machine."""
    for key, leaf in () if section is None else section.leaf_sections(option):
        if leaf.code is not None and leaf.code.url is None:
            open_sandbox(leaf.code, f"{key}.code")
