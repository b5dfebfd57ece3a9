"""Architectures that `transformers` supports, by type."""

from __future__ import annotations

from difflib import get_close_matches

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES


def is_known(model_type: object) -> bool:
    """True if `transformers` has a configuration of this type."""
    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def find_nearest(model_type: object) -> str | None:
    """The known type closest to a misspelled one."""
    return next(iter(get_close_matches(str(model_type), CONFIG_MAPPING.keys(), 1)), None)


def has_classifier(model_type: str) -> bool:
    """True if `transformers` has a sequence classifier for this backbone."""
    return model_type in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
