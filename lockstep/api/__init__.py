"""The Python API: algorithms as objects, and parts for custom training loops.

`import lockstep` has everything.
"""
