"""`lockstep doctor selftest`: a few faults put into real backends on purpose, and how many of them the doctor names."""
