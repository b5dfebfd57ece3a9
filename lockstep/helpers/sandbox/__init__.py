"""A sandbox for programs that nobody has read: what a model writes, run with limits and apart from everything else."""
