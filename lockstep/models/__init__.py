"""Models from folders and back. `transformers` shows no progress bars: a run has its own."""

from transformers.utils import logging

logging.disable_progress_bar()
