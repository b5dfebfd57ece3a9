"""Particulars of single architectures: a file for each family, and the registry of them all."""
