"""The names that `import graf` gives to other programs."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import graf
from graf.camera import poses_at
from graf.checkpoints.directions_file import load_directions, write_directions
from graf.checkpoints.generator_loading import load_generator
from graf.checkpoints.latents_file import load_latents, write_latents
from graf.config import Config, load_config
from graf.models.directions import edited, principal_directions
from graf.models.generator import Generator
from graf.version import __version__

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
WEIGHTS = ROOT / "weights" / "toy_cars.safetensors"


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


def test_the_page_on_python_names_each_and_calls_it():
    code = "\n".join(re.findall(r"^ {4}.*$", PAGE, re.MULTILINE))
    assert [name for name in graf.__all__ if f"`{name}`" not in PAGE] == []
    assert [name for name in graf.__all__ if name != "__version__" and f"graf.{name}" not in code] == []


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    generator = load_generator(WEIGHTS)
    write_latents(tmp_path / "latents.json", generator, torch.zeros(generator.latent_dim), 0, WEIGHTS, 4500)
    write_directions(tmp_path / "directions.json", principal_directions(generator, 2), {})
    code = textwrap.dedent("\n".join(re.findall(r"^(?: {4}.*|)$", PAGE, re.MULTILINE)))
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(code.replace("weights/toy_cars.safetensors", WEIGHTS.as_posix()), found)
    assert found["view"].images.shape == (1, 3, 64, 64) and found["untrained"].config.data.imsize == 32
