"""The faults that the doctor's rules were tuned on, in seven lists; those held out are in `heldout`."""

from lockstep.doctor.selftest.fault import Fault
from lockstep.doctor.selftest.faults_model import MODEL
from lockstep.doctor.selftest.faults_passes import PASSES
from lockstep.doctor.selftest.faults_scoring import SCORING
from lockstep.doctor.selftest.faults_weights import WEIGHTS
from lockstep.doctor.selftest.fifth import FIFTH
from lockstep.doctor.selftest.fourth import FOURTH
from lockstep.doctor.selftest.second import SECOND
from lockstep.doctor.selftest.seventh import SEVENTH
from lockstep.doctor.selftest.sixth import SIXTH
from lockstep.doctor.selftest.third import THIRD

FIRST: tuple[Fault, ...] = tuple(sorted((*SCORING, *MODEL, *WEIGHTS, *PASSES), key=lambda fault: fault.number))
"""In the order of the list; 33 is a row in fp16, 34 the precision of the softmax."""
TUNING: tuple[Fault, ...] = FIRST + SECOND + THIRD + FOURTH + FIFTH + SIXTH + SEVENTH
"""The second list's numbers are those of the first and 100; the third's begin at 201, the fourth's at 301,
the fifth's at 401, the sixth's at 501,
the seventh's at 601."""
