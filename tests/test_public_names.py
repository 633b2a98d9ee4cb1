"""The names that `import graf` gives to other programs."""

import subprocess
import sys

import graf
from graf.camera import poses_at
from graf.checkpoints.directions_file import load_directions
from graf.checkpoints.generator_loading import load_generator
from graf.checkpoints.latents_file import load_latents
from graf.config import Config, load_config
from graf.models.directions import edited, principal_directions
from graf.models.generator import Generator
from graf.version import __version__

import pytest


def test_the_public_names_are_those_of_their_modules():
    homes = {"Config": Config, "Generator": Generator, "load_config": load_config, "load_generator": load_generator}
    homes |= {"load_latents": load_latents, "poses_at": poses_at, "__version__": __version__}
    homes |= {"load_directions": load_directions, "principal_directions": principal_directions, "edited": edited}
    assert set(graf.__all__) == set(dir(graf)) == homes.keys()
    assert all(getattr(graf, name) is value for name, value in homes.items())


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'graf' has no attribute 'load_genrator'"):
        _ = graf.load_genrator


@pytest.mark.parametrize(("asked", "loaded"), [("graf.__version__", False), ("graf.poses_at", True)])
def test_torch_is_loaded_with_the_first_name_that_needs_it(asked, loaded):
    program = f"import sys, graf; assert 'torch' not in sys.modules; {asked}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == str(loaded)
