"""Tables of the keys of other libraries, one per library, read by `lockstep convert`, messages and a page.

The rows were read in the libraries' sources of 2026 (`LIBRARIES` says which); nothing here imports one of them.
"""
