"""The doctor for programs of any kind: where two engines disagree about a model, proven by undoing it.

Needs torch, numpy and safetensors, and nothing else of this repository.
"""

from lockstep_doctor.cuts import OUTPUT, Capture, CutPoint
from lockstep_doctor.engines import EngineOptions, find_engine, find_engines
from lockstep_doctor.examine import PairExamination, examine
from lockstep_doctor.file_tap import FileTap, Recording, TapError, tap
from lockstep_doctor.findings import describe, describe_examination, tree_of
from lockstep_doctor.locate import FaultPlace, Location, Segment, Suspect, locate
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.operators import Frame, Operator, OperatorTrace
from lockstep_doctor.reproduction import write_engine_reproduction, write_reproduction
from lockstep_doctor.tap import Tap

__all__ = [
    "OUTPUT",
    "Capture",
    "CutPoint",
    "EngineOptions",
    "FaultPlace",
    "FileTap",
    "Frame",
    "Location",
    "ModuleTap",
    "Operator",
    "OperatorTrace",
    "PairExamination",
    "Recording",
    "Segment",
    "Suspect",
    "Tap",
    "TapError",
    "describe",
    "describe_examination",
    "examine",
    "find_engine",
    "find_engines",
    "locate",
    "tap",
    "tree_of",
    "write_engine_reproduction",
    "write_reproduction",
]
