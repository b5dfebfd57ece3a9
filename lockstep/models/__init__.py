"""Models from folders and back. `transformers` shows no bars of its own: a run has one."""

from transformers.utils import logging

logging.disable_progress_bar()
