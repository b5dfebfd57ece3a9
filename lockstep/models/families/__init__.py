"""What is particular to one architecture: a file for each family, and the registry of them all."""
