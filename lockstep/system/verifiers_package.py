"""The package `verifiers` of others: its version, its tasks, and how their conversations begin."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lockstep.core.errors import InputError

VERSION = "0.4"


def require_verifiers() -> None:
    """Raises InputError where the package is missing, or of another version."""
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        found = None
    if found is None or not found.startswith(f"{VERSION}."):
        has = "is not installed" if found is None else f"is version {found}"
        raise InputError(f"the package verifiers {has}; environments of version {VERSION} are played: pip install "
                         f"'verifiers=={VERSION}.*'")  # fmt: skip


def open_tasks(taskset: str) -> list[Any]:
    """All tasks of a taskset, `verifiers.v1.Task`.

    Raises:
        InputError: There is no such taskset, or what its tasks need is not there.
    """
    require_verifiers()
    from verifiers.v1.configs.taskset import TasksetConfig  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.loaders import default_harness_id, load_taskset, taskset_config_type  # pyright: ignore[reportMissingImports]

    try:
        config: TasksetConfig = taskset_config_type(taskset).model_validate({"id": taskset})
        found = load_taskset(config)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"the taskset {taskset} of verifiers cannot be opened: {error}") from error
    kind = type(found).task_type()
    needs = {
        "tasks without end": not found.bounded,
        "a container": kind.NEEDS_CONTAINER,
        "tool servers": bool(type(found).toolsets(config) or kind.toolsets(kind.config_type()())),
        f"the harness {default_harness_id(taskset)}": default_harness_id(taskset) != "bash",
    }
    needed = [what for what, is_needed in needs.items() if is_needed]
    if needed:
        raise InputError(
            f"the taskset {taskset} of verifiers has {' and '.join(needed)}; conversations in this process are played"
        )
    return list(found)


def open_talk(data: Any) -> list[dict[str, str]]:
    """The messages of a task's data, `verifiers.v1.TaskData`, that its conversation begins with."""
    from verifiers.v1.types import content_text  # pyright: ignore[reportMissingImports]

    if data.prompt is None:
        raise InputError(f"task {data.idx} of verifiers has no prompt; episodes that a user opens are not played")
    prompt = data.prompt if isinstance(data.prompt, list) else []
    said = [{"role": message.role, "content": content_text(message.content)} for message in prompt]
    system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    return system + (said or [{"role": "user", "content": str(data.prompt)}])
