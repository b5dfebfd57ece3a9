"""What `lockstep doctor` ends with."""

PASS, EXPLAINED, UNEXPLAINED, INCONCLUSIVE, COULD_NOT_START = range(5)
"""It agrees; it does not, and every cause has a name; it does not, and some have none; too little was drawn to tell;
the work could not begin."""
