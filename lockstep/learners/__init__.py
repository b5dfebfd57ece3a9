"""Training backends."""

# first: its defaults are checked by backends, which import from here
from lockstep import config as config
