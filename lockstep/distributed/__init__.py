"""Multi-rank code that learners and samplers share.

Re-exports `lockstep_logprobs`, a separate package.
"""

from lockstep_logprobs import *  # noqa: F403
from lockstep_logprobs import __all__ as __all__
