"""The run configuration: one pydantic section an owner, a sentence for every field, defaults that suit a laptop.

Nothing heavy is imported here, so `--help`, `--dry-run` and a mistaken key answer at once. `docs/configuration.md` is
generated from the field descriptions (`python -m oni_ray.config.reference`), and a run folder holds the resolved form.
"""

from oni_ray.config.loading import dump_config, load_config, parse_config
from oni_ray.config.sections import (
    AlgorithmSection,
    AnnotationSection,
    Config,
    EnvSection,
    LLMSection,
    PolicySection,
    ResourcesSection,
    RewardSection,
)

__all__ = [
    "AlgorithmSection",
    "AnnotationSection",
    "Config",
    "EnvSection",
    "LLMSection",
    "PolicySection",
    "ResourcesSection",
    "RewardSection",
    "dump_config",
    "load_config",
    "parse_config",
]
