"""Types, batches and metrics that the whole package shares."""
