"""Losses as values: frozen dataclasses that can be sent to any process; see `lockstep.losses.base.Loss`.

A loss of your own also needs `Outputs`, `Denominator`, `Metrics` and the reductions that a metric can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.lazy_names import export_lazily

if TYPE_CHECKING:
    from lockstep.losses.base import Denominator, Loss, Outputs
    from lockstep.losses.cross_entropy import CrossEntropyLoss
    from lockstep.losses.distill import Distillation
    from lockstep.losses.kto import KTOLoss
    from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
    from lockstep.losses.preference import Preference
    from lockstep.losses.reference_free import ORPOLoss, SimPOLoss
    from lockstep.losses.reward import BradleyTerry
    from lockstep.metrics import Max, Mean, Metrics, Min, Sum

__all__ = [
    "BradleyTerry",
    "ClippedSurrogate",
    "ClippedValue",
    "CrossEntropyLoss",
    "Denominator",
    "Distillation",
    "KTOLoss",
    "Loss",
    "Max",
    "Mean",
    "Metrics",
    "Min",
    "ORPOLoss",
    "Outputs",
    "Preference",
    "SimPOLoss",
    "Sum",
]

_PLACES = {
    "lockstep.losses.base": (
        "Denominator",
        "Loss",
        "Outputs",
    ),
    "lockstep.losses.cross_entropy": ("CrossEntropyLoss",),
    "lockstep.losses.distill": ("Distillation",),
    "lockstep.losses.kto": ("KTOLoss",),
    "lockstep.losses.ppo": (
        "ClippedSurrogate",
        "ClippedValue",
    ),
    "lockstep.losses.preference": ("Preference",),
    "lockstep.losses.reference_free": (
        "ORPOLoss",
        "SimPOLoss",
    ),
    "lockstep.losses.reward": ("BradleyTerry",),
    "lockstep.metrics": (
        "Max",
        "Mean",
        "Metrics",
        "Min",
        "Sum",
    ),
}
"""Names that are exported here, by the module that defines them."""

__getattr__ = export_lazily(__name__, _PLACES)
