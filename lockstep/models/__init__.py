"""Loads and saves models.

Turns off the progress bars of `transformers`; a run shows its own.
"""

from transformers.utils import logging

logging.disable_progress_bar()
