"""Triton kernels of this package's passes; only `kernel` imports them, for GPU tensors."""
