"""Files, processes and paths of the machine."""
