"""A sandbox for untrusted programs written by models: isolated and with limits."""
