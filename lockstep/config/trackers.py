"""Trackers that a run logs to in addition to its own files.

URLs and keys come from each tool's environment.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lockstep.config.section import Section


class TensorBoard(Section):
    """Event files in the run's `tensorboard/`."""


class WandB(Section):
    """Weights & Biases; `wandb login` or WANDB_API_KEY identifies the user."""

    project: str = Field(default="lockstep", min_length=1, description="W&B project")
    name: str | None = Field(
        default=None, min_length=1, description="W&B run name; null: the folder's name"
    )
    mode: Literal["auto", "offline", "online"] = Field(
        default="auto",
        description=(
            "auto: online if you are logged in to W&B; offline: files in the run's `wandb/`, which "
            "`wandb sync` uploads"
        ),
    )


class Trackers(Section):
    """All trackers show the run's logs; each is off unless named, and `{}` turns it on.

    See docs/guides/trackers.md.
    """

    tensorboard: TensorBoard | None = None
    wandb: WandB | None = None
