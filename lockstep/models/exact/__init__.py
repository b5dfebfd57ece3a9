"""Batch-invariant products, attention and activations.

A row gets the same bits in any batch: decoded, scored or trained.
"""
