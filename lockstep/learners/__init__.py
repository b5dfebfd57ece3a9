"""Training backends."""

from lockstep import (
    config as config,
)  # first: its defaults are checked by backends, which import from here
