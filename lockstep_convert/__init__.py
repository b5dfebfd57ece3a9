"""Recipes from configs of other post-training libraries, by one table of keys per library."""
