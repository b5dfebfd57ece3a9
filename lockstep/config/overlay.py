"""Merging one layer of options over another, including options that the upper one clears.

Imports no torch.
"""

from __future__ import annotations

from typing import Any

from lockstep.system import yaml12

_EXCLUSIVE = (
    ("model", ("path", "from_recipe", "scratch")),
    ("data", ("train", "task")),
    ("data", ("prompt", "messages")),
    ("data", ("ranks", "best", "tree")),
    ("reward", ("marker", "function", "parts")),
)
TASK_NAME = ("data", "task", "name")
"""Decides which options the task has: a new name drops the options set before."""
_LENGTH = ("run", ("max_steps", "max_epochs"))
"""Also exclusive, for recipes with `steps_and_epochs = False`; -1 means not given."""
_REWARD_TYPES = {
    "marker": "math",
    "instructions": "instructions",
    "code": "code",
    "function": "python",
    "server": "server",
    "judge": "judge",
    "parts": "sum",
}
"""Reward type implied by each of these options."""


def overlay_options(
    below: dict[str, Any], above: dict[str, Any], steps_and_epochs: bool
) -> dict[str, Any]:
    """Merges `above` over `below`; setting an option clears the others of its group.

    Args:
        below: Options of a base.
        above: Options over it.
        steps_and_epochs: See `Recipe`.
    """
    exclusive = _EXCLUSIVE if steps_and_epochs else (*_EXCLUSIVE, _LENGTH)
    for section, group in exclusive:
        given = above.get(section)
        taken = below.get(section)
        if (
            isinstance(given, dict)
            and isinstance(taken, dict)
            and any(given.get(k) not in (None, -1) for k in group)
        ):
            kept = {key: value for key, value in taken.items() if key not in group or key in given}
            below = below | {section: kept}
    name = yaml12.find_value(above, TASK_NAME)
    if name is not None and name != yaml12.find_value(below, TASK_NAME):
        below = yaml12.merge_over(below, {"data": {"task": None}})
    merged = yaml12.merge_over(below, above)
    run = merged.get("run")
    if isinstance(run, dict) and (run.get("max_epochs", 1) or run.get("max_steps", -1) != -1):
        # the run has a length, so null means that the other one is not set
        merged["run"] = {
            key: value for key, value in run.items() if value is not None or key not in _LENGTH[1]
        }
    return merged


def add_reward_type(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Adds the type to a reward that is set up without one, such as by `reward.function` alone."""
    given = above.get("reward")
    taken = below.get("reward")
    if not isinstance(given, dict) or "type" in given:
        return above
    if isinstance(taken, dict) and taken.get("type") == "by_row":
        return above
    types = [kind for option, kind in _REWARD_TYPES.items() if given.get(option) is not None]
    if len(types) == 1:
        return above | {"reward": {**given, "type": types[0]}}
    return above
