"""Dumps of token ids and log-probabilities from any program, and their comparison with a model."""
