"""Losses as frozen dataclasses, which can be sent to any process; see `losses.base.Loss`.

A custom loss also needs `Outputs`, `Denominator`, `Metrics` and the metric reductions.
"""

from __future__ import annotations

from lockstep.core.metrics import Max, Mean, Metrics, Min, Sum
from lockstep.losses.base import Denominator, Loss, Outputs
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.losses.distill import Distillation
from lockstep.losses.kto import KTOLoss
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.losses.preference import BradleyTerry, ORPOLoss, Preference, SimPOLoss

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
