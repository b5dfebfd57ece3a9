"""`lockstep_logprobs.model_utils`, under the name that it had before it was a separate package."""

from lockstep_logprobs.model_utils import *  # noqa: F403
from lockstep_logprobs.model_utils import __all__ as __all__
