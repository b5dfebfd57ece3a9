"""The parts that learners and samplers share over ranks; re-exports `lockstep_logprobs`, which
stands alone.
"""

from lockstep_logprobs import *  # noqa: F403
from lockstep_logprobs import __all__ as __all__
