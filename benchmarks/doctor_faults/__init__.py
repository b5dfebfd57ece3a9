"""The benchmark of the doctor: faults put into real backends on purpose, and how many of them it locates."""
