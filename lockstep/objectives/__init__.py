"""Pure functions of tensors: advantages, clipped objectives, divergences, shaping, corrections."""
