"""Products, attention and activations that give a row the same bits in any batch, decoded, scored
or trained.
"""
