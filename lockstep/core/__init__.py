"""Types, batches and metrics that every room speaks of."""
