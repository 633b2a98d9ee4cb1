"""Runs of earlier defaults continue as a lab note says: its settings make today's default what the default was then."""

import re
import shlex
from pathlib import Path

from graf.config import Config, load_config
from graf.config.reading import config_from_dict, config_to_dict, flat, merge, override

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOTE = (ROOT / "docs" / "lab" / "2026-11-25-earlier-defaults.md").read_text(encoding="utf-8")
DEFAULTS = yaml.safe_load((Path(__file__).parent / "earlier_defaults.yaml").read_text(encoding="utf-8"))
MAY_CHANGE = {"training.max_steps", "training.fid_every", "data.v"}  # in a run; toy cars have four elevations by any v of four
PLANES = "nerf.conditioning=triplane"
RECIPES = [  # of the note, the newest first, and what set their defaults apart from that with a film
    (),
    (PLANES,),
    (PLANES, "discriminator.low_res_steps=0"),
]


def earlier(name: str, *settings: str) -> Config:
    return override(config_from_dict(merge(config_to_dict(Config()), DEFAULTS[name], name), name), settings)


def differences(config: Config, other: Config) -> set[str]:
    mine, theirs = (
        flat(config_to_dict(each)) | {"discriminator.low_res_steps": each.low_res_steps} for each in (config, other)
    )
    return {key for key in mine if mine[key] != theirs[key]}


@pytest.mark.parametrize("index", range(len(RECIPES)))
def test_settings_of_the_note_continue_runs_of_earlier_defaults(index):
    found = re.findall(r"`(--set\s[^`]*nerf\.multires=4[^`]*)`", NOTE)
    assert len(found) == len(RECIPES)
    config = load_config(None, shlex.split(found[index])[1:])
    assert differences(config, earlier("film", *RECIPES[index])) <= MAY_CHANGE


def test_the_note_continues_runs_without_an_encoder():
    found = re.search(
        r"without an encoder\*\* .*?`python train.py (--config .*?)`.*?name none of these.*?`(--set\s.*?)`", NOTE, re.DOTALL
    )
    _, name, *settings = shlex.split(found[1])
    own = shlex.split(found[2])
    then = earlier("without an encoder")
    for config in (load_config(name, settings[1:]), load_config(None, own[1:])):
        assert differences(config, then) <= {"discriminator.projected_weight"}  # of heads, which these runs have not
        assert config.training.milestones == then.training.milestones == (3500,)


def test_the_note_continues_runs_with_fewer_first_steps():
    found = re.search(r"fewer first steps\*\* continues with `(--set\s[^`]*)`", NOTE)
    config = load_config(None, shlex.split(found[1])[1:])
    mixed = "discriminator.architecture=mixed", "encoder.first_steps=1000", "encoder.weight=10", "training.max_steps=3900"
    assert not differences(config, then := earlier("without an encoder", *mixed))
    assert config.training.milestones == then.training.milestones == (3033,)


def test_film_64_continues_runs_of_the_first_default():
    assert "`python train.py --config film_64 --set expname=default`" in NOTE
    assert differences(load_config("film_64", ["expname=default"]), earlier("first")) <= MAY_CHANGE
