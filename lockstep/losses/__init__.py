"""Losses as values: frozen dataclasses that any process can be sent, see `lockstep.losses.base.Loss`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.lazy_names import export_lazily

if TYPE_CHECKING:
    from lockstep.losses.base import Denominator, Loss, Outputs
    from lockstep.losses.cross_entropy import CrossEntropyLoss
    from lockstep.losses.distill import Distillation
    from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
    from lockstep.losses.preference import Preference
    from lockstep.losses.reward import BradleyTerry

__all__ = [
    "BradleyTerry",
    "ClippedSurrogate",
    "ClippedValue",
    "CrossEntropyLoss",
    "Denominator",
    "Distillation",
    "Loss",
    "Outputs",
    "Preference",
]

_PLACES = {
    "lockstep.losses.base": (
        "Denominator",
        "Loss",
        "Outputs",
    ),
    "lockstep.losses.cross_entropy": ("CrossEntropyLoss",),
    "lockstep.losses.distill": ("Distillation",),
    "lockstep.losses.ppo": (
        "ClippedSurrogate",
        "ClippedValue",
    ),
    "lockstep.losses.preference": ("Preference",),
    "lockstep.losses.reward": ("BradleyTerry",),
}
"""Modules, and the names of theirs that are exported here."""

__getattr__ = export_lazily(__name__, _PLACES)
