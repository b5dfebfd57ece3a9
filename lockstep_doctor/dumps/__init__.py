"""Dumps of ids and log-probabilities that any program wrote, and a model beside them."""
