"""Losses as values: frozen dataclasses that any process can be sent, see `lockstep.losses.base.Loss`."""
