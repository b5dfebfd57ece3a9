"""The rungs: one file each, with its recipes beside it."""
