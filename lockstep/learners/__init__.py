"""Training backends."""

# first, because backends import its defaults from here
from lockstep import config as config
