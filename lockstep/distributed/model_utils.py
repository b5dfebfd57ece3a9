"""Alias of `lockstep_logprobs.model_utils`, from before it was a separate package."""

from lockstep_logprobs.model_utils import *  # noqa: F403
from lockstep_logprobs.model_utils import __all__ as __all__
