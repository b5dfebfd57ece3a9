"""A sandbox for untrusted programs: those that a model writes, run with limits and apart from
everything else.
"""
