"""The faults that the doctor's rules were tuned on; those held out are in `heldout`."""

from lockstep.doctor.selftest.fault import Fault
from lockstep.doctor.selftest.faults_model import MODEL
from lockstep.doctor.selftest.faults_passes import PASSES
from lockstep.doctor.selftest.faults_scoring import SCORING
from lockstep.doctor.selftest.faults_weights import WEIGHTS

TUNING: tuple[Fault, ...] = tuple(sorted((*SCORING, *MODEL, *WEIGHTS, *PASSES), key=lambda fault: fault.number))
"""In the order of the list; 33 is a row in fp16, 34 the precision of the softmax."""
