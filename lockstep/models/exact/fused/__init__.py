"""Batch-invariant Triton kernels for GPUs: constant tiles, and no split sums."""
