"""Triton kernels of the passes in this package: imported where tensors are on a GPU, by `kernel`,
and nowhere else.
"""
