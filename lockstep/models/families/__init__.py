"""Architecture-specific settings: one file per family, and a registry."""
