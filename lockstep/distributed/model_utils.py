"""`lockstep_logprobs.model_utils`, under the name that docs/coming_from.md has had for it."""

from lockstep_logprobs.model_utils import *  # noqa: F403
from lockstep_logprobs.model_utils import __all__ as __all__
