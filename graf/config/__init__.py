"""The configuration: frozen dataclasses (schema.py), read from YAML (reading.py).

config = load_config("carla_64", ["training.batch_size=4"])
"""

from graf.config.reading import (
    CONFIG_DIR,
    config_from_dict,
    config_rows,
    config_to_dict,
    find_config,
    flat,
    graf_config,
    load_config,
    merge,
    nested,
    override,
    parse_override,
    read_yaml,
)
from graf.config.schema import (
    CcsrConfig,
    Config,
    DataConfig,
    DiscriminatorConfig,
    LatentConfig,
    LightBackboneConfig,
    MemoryConfig,
    MetricsConfig,
    NerfConfig,
    RaySamplerConfig,
    ReportingConfig,
    RrdbConfig,
    TrainingConfig,
)

__all__ = [
    "CcsrConfig",
    "Config",
    "CONFIG_DIR",
    "config_from_dict",
    "config_rows",
    "config_to_dict",
    "DataConfig",
    "DiscriminatorConfig",
    "find_config",
    "flat",
    "graf_config",
    "nested",
    "LatentConfig",
    "LightBackboneConfig",
    "load_config",
    "MemoryConfig",
    "merge",
    "MetricsConfig",
    "NerfConfig",
    "override",
    "parse_override",
    "RaySamplerConfig",
    "ReportingConfig",
    "RrdbConfig",
    "read_yaml",
    "TrainingConfig",
]
