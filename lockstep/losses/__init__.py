"""Losses as values: frozen dataclasses that can be sent to any process; see
`lockstep.losses.base.Loss`.

A loss of your own also needs `Outputs`, `Denominator`, `Metrics` and the reductions that a metric
can be.
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
