"""One file per library: which of its files are executed, and how its functions are called."""
