"""Lockstep: post-training of language models in which the trained policy and the sampling policy stay in lockstep."""

__version__ = "0.1.0"
