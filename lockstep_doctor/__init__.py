"""The doctor for programs of any kind: where two engines disagree about a model, proven by undoing it.

Needs torch and safetensors, and nothing else of this repository.
"""

from lockstep_doctor.builds import compare_builds
from lockstep_doctor.cuts import OUTPUT, Capture, CutPoint
from lockstep_doctor.examine import Examination, examine
from lockstep_doctor.findings import describe, describe_examination, tree_of
from lockstep_doctor.locate import Location, Place, Segment, Suspect, locate
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.operators import Frame, Operator, OperatorTrace
from lockstep_doctor.reproduction import write_reproduction
from lockstep_doctor.tap import Tap

__all__ = [
    "OUTPUT",
    "Capture",
    "CutPoint",
    "Examination",
    "Frame",
    "Location",
    "ModuleTap",
    "Operator",
    "OperatorTrace",
    "Place",
    "Segment",
    "Suspect",
    "Tap",
    "compare_builds",
    "describe",
    "describe_examination",
    "examine",
    "locate",
    "tree_of",
    "write_reproduction",
]
