"""Weights & Biases.

Offline, a run's files are rewritten from the logs; online, data sent to W&B stays there.

W&B does not accept earlier steps: it requires steps in order, and does not merge offline folders.
So offline there is always one folder, with all steps of the logs. Online the run resumes under its
id after the newest step that W&B has; steps that the run repeats after a kill are not sent again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from typing import Literal, assert_never

import wandb
from wandb.errors import UsageError

from lockstep.config import WandB
from lockstep.core.errors import InputError
from lockstep.run.trackers.view import RunFacts, RunOutcome, SampleRows, TrackerView, build_table

_EXIT_CODES: dict[RunOutcome, int] = {"finished": 0, "failed": 1, "interrupted": 130}

_SETTINGS = wandb.Settings(
    silent=True,
    console="off",
    disable_git=True,
    disable_code=True,
    finish_timeout=600.0,  # a longer upload is abandoned and reported as failed
    finish_timeout_raises=True,
)


class WandBView(TrackerView):
    """Metrics and timings as history, samples as tables, recipe and environment as config."""

    def __init__(self, section: WandB, facts: RunFacts) -> None:
        self._section = section
        self._facts = facts
        self._folder = facts.folder / "wandb"
        match section.mode:
            case "offline":
                self._is_online = False
            case "auto":
                self._is_online = _is_logged_in()
            case "online":
                self._is_online = True
                if not _is_logged_in():
                    raise InputError(
                        "trackers.wandb.mode is online, but you are not logged in to W&B; run "
                        "`wandb login`"
                    )
            case _:
                assert_never(section.mode)

    @property
    def run_location(self) -> str:
        if self._is_online:
            return str(self._run.url)
        return f"wandb sync {self._run.settings.sync_dir}"

    def open_view(self, step: int) -> int:
        resume: Literal["allow"] | None = "allow"
        if not self._is_online:
            # removes this run's offline files, and keeps W&B's data in the run's folder
            data = self._folder / f"data-{self._read_run_id()}"
            pattern = f"offline-run-*-{self._read_run_id()}"
            for old in [*self._folder.glob(pattern), *self._folder.glob(data.name)]:
                shutil.rmtree(old)
            # the default is the home folder, where nothing removes them
            os.environ["WANDB_DATA_DIR"] = str(data.resolve())
            resume = None
        self._run = wandb.init(
            project=self._section.project,
            id=self._read_run_id(),
            name=self._section.name or self._facts.name,
            # W&B's process may have a different working directory
            dir=self._facts.folder.resolve(),
            mode="online" if self._is_online else "offline",
            resume=resume,
            reinit="create_new",
            config={"recipe": self._facts.recipe, "environment": self._facts.environment},
            settings=_SETTINGS,
        )
        return self._run.step - 1  # −1 if offline or if W&B has no data of this run

    def send_step(
        self, step: int, values: Mapping[str, float], samples: Mapping[str, SampleRows]
    ) -> None:
        # first, because W&B names table files after the previous step
        self._run.log(dict(values), step=step)
        for kind, rows in samples.items():
            columns, cells = build_table(rows)
            shown = wandb.Table(columns=[*columns], data=[*cells], allow_mixed_types=True)
            self._run.log({kind: shown}, step=step)

    def close_view(self, outcome: RunOutcome) -> None:
        self._run.finish(exit_code=_EXIT_CODES[outcome])

    def _read_run_id(self) -> str:
        """The run's random id, kept in its folder: a recreated folder is a new run."""
        path = self._folder / "run_id"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(uuid.uuid4().hex, encoding="utf-8")
        return path.read_text(encoding="utf-8")


def _is_logged_in() -> bool:
    try:
        return wandb.login(prompt=False, verify=False)
    except UsageError:
        return False
