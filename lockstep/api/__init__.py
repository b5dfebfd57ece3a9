"""The Python face: algorithms as objects, and parts for a training loop of your own; `import
lockstep` has it all.
"""
