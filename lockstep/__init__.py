"""Lockstep: post-training of language models in which the trained policy and the sampling policy stay in lockstep."""

from lockstep import process_defaults

__version__ = "0.1.0"

process_defaults.limit_threads()
