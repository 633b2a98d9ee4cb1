"""The configuration: frozen dataclasses (schema.py), read from YAML (reading.py).

config = load_config("carla_64", ["training.batch_size=4"])
"""

from graf.config.reading import (
    CONFIG_DIR,
    completed_config,
    config_from_dict,
    config_of_ours,
    config_rows,
    config_text,
    config_to_dict,
    flat,
    graf_config,
    is_set,
    load_config,
    merge,
    override,
    read_yaml,
)
from graf.config.schema import (
    CcsrConfig,
    Config,
    DataConfig,
    DiscriminatorConfig,
    LatentConfig,
    MemoryConfig,
    MetricsConfig,
    NerfConfig,
    PoseConfig,
    PoseModelConfig,
    RaySamplerConfig,
    RunConfig,
    TrainingConfig,
)
from graf.config.strict import Cadence, minutes_of
