"""What a family's file says of an architecture fits the architecture as `transformers` builds
it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tiny_models import SHAPE
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from lockstep.models import families
from lockstep.models.families.base import ModelFamily
from lockstep.models.families.registry import FAMILIES
from lockstep.models.folder import build_skeleton
from lockstep.models.megatron import list_slices

MACHINERY = {"__init__", "base", "known", "own_code", "registry"}
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)


def config_of(family: ModelFamily) -> PreTrainedConfig:
    return AutoConfig.for_model(family.model_type, **SHAPE)


def model_of(family: ModelFamily) -> PreTrainedModel:
    return build_skeleton(config_of(family), family.model_type)


def test_every_family_module_is_registered() -> None:
    files = {path.stem for path in Path(families.__path__[0]).glob("*.py")} - MACHINERY
    assert files == {family.model_type for family in FAMILIES}


@every_family
def test_tensor_parallel_plan_names_real_modules_and_covers_every_parameter(
    family: ModelFamily,
) -> None:
    assert family.tensor_parallel is not None
    plan, backbone = family.tensor_parallel.plan(), model_of(family).base_model
    modules = [name for name, _ in backbone.named_modules()]
    assert [name for name in plan if not any(fnmatchcase(module, name) for module in modules)] == []
    weights = [name.rpartition(".")[0] for name, _ in backbone.named_parameters()]
    assert [
        weight for weight in weights if not any(fnmatchcase(weight, name) for name in plan)
    ] == []


@every_family
def test_megatron_mapping_covers_each_parameter_exactly_once(family: ModelFamily) -> None:
    assert family.megatron is not None
    config, model = config_of(family), model_of(family)
    parameters = [
        parameter.replace("*", str(layer))
        for parameter in family.megatron.tensors
        for layer in range(_layers(parameter))
    ]
    there = [place.name for parameter in parameters for place in list_slices(parameter, config)]
    assert sorted(there) == sorted(
        name.removeprefix("model.") for name, _ in model.named_parameters()
    )


def _layers(parameter: str) -> int:
    return SHAPE["num_hidden_layers"] if "*" in parameter else 1
