"""The faults that the doctor's rules were tuned on, in seven lists; those held out are in `heldout`."""

from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.faults_model import MODEL
from benchmarks.doctor_faults.faults_passes import PASSES
from benchmarks.doctor_faults.faults_scoring import SCORING
from benchmarks.doctor_faults.faults_weights import WEIGHTS
from benchmarks.doctor_faults.fifth import FIFTH
from benchmarks.doctor_faults.fourth import FOURTH
from benchmarks.doctor_faults.kept import KEPT
from benchmarks.doctor_faults.second import SECOND
from benchmarks.doctor_faults.seventh import SEVENTH
from benchmarks.doctor_faults.sixth import SIXTH
from benchmarks.doctor_faults.third import THIRD

FIRST: tuple[Fault, ...] = tuple(sorted((*KEPT, *SCORING, *MODEL, *WEIGHTS, *PASSES), key=lambda fault: fault.number))
"""In the order of the list; 33 is a row in fp16, 34 the precision of the softmax."""
TUNING: tuple[Fault, ...] = FIRST + SECOND + THIRD + FOURTH + FIFTH + SIXTH + SEVENTH
"""The second list's numbers are those of the first and 100; the third's begin at 201, the fourth's at 301,
the fifth's at 401, the sixth's at 501,
the seventh's at 601."""
