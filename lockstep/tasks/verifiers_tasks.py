"""Rows from the tasks of an environment of the package `verifiers`, which is imported where a recipe asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from lockstep.core.errors import InputError
from lockstep.system.verifiers_package import open_talk, open_tasks
from lockstep.tasks.base import Task, TaskFiles, write_rows


class VerifiersTasks(Task):
    """Tasks of a taskset of `verifiers`, to be played by `lockstep.environments.verifiers_bridge:VerifiersEpisode`.

    Rows have `messages`, the conversation that opens the episode, and the place of the task.
    """

    shared = ("taskset", "validation_tasks")
    taskset: str = Field(description="id of the taskset: a module that exports it, as verifiers itself finds it")
    validation_tasks: PositiveInt = Field(default=16, description="the last so many tasks are held out")

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder)
        rows = list(_rows(self.taskset))
        if len(rows) <= self.validation_tasks:
            raise InputError(
                f"data.task.validation_tasks={self.validation_tasks} leaves none of the {len(rows)} tasks of "
                f"{self.taskset} to train on; hold out fewer"
            )
        write_rows(files.train, rows[: -self.validation_tasks])
        write_rows(files.validation, rows[-self.validation_tasks :])
        return files


def _rows(taskset: str) -> Iterator[dict[str, Any]]:
    for index, task in enumerate(open_tasks(taskset)):
        yield {"messages": open_talk(task.data), "taskset": taskset, "index": index}
