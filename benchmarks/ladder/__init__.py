"""A ladder of tasks that tell algorithms and their options apart."""
