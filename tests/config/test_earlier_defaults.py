"""Runs of earlier defaults continue as a lab note says: its settings make today's default what the default was then."""

import re
import shlex
from pathlib import Path

from graf.config import Config, load_config
from graf.config.older import OLDER_VALUES
from graf.config.reading import config_from_dict, config_to_dict, flat, merge, override
from graf.data import resolve

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


OF_BEFORE = {
    "data.alpha": "ignore",
    "data.box": "none",
    "ccsr.lr_multiplier": 1,
    "ccsr.learns_from": "discriminator",
    "ccsr.unrefined_steps": 0,
    "encoder.first_steps": 0,
    "encoder.weight": 0,
    "discriminator.architecture": "graf",
    "discriminator.low_res_steps": 0,
}


def earlier(name: str, *settings: str) -> Config:
    return override(config_from_dict(merge(config_to_dict(Config()), DEFAULTS[name], name), name), settings)


def config_of_before() -> Config:
    """The config in a checkpoint that knows no ccsr.unrefined_steps."""
    return config_from_dict(merge(config_to_dict(Config()), OLDER_VALUES, "checkpoint"), "checkpoint")


def test_keys_that_a_checkpoint_lacks_are_read_as_what_was_done_before_there_were_such_keys():
    before = flat(config_to_dict(config_of_before()))
    found = {key: before[key] for key in OF_BEFORE}
    assert found == OF_BEFORE


def differences(config: Config, other: Config) -> set[str]:
    mine, theirs = (
        flat(config_to_dict(each))
        | {"discriminator.low_res_steps": each.low_res_steps, "training.model_average_beta": each.model_average_beta}
        for each in (config, other)
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
    for config, cadence in ((load_config(name, settings[1:]), set()), (load_config(None, own[1:]), {"training.fid_every"})):
        heads = {"discriminator.projected_weight"}  # which these runs have not
        assert differences(config, then) <= heads | cadence
        assert config.training.max_steps == then.training.max_steps
        assert config.milestones == then.milestones == (3500,)


@pytest.mark.parametrize(
    ("first_steps", "max_steps", "then"),
    [("3,000", 4900, ("discriminator.low_res_steps=500", "discriminator.projected_weight=1")), ("1,000", 3900, ())],
)
def test_the_note_continues_runs_with_fewer_first_steps(first_steps, max_steps, then):
    found = re.search(rf"with {first_steps} first steps\*\* continues with `(--set\s[^`]*)`", NOTE)
    config = load_config(None, shlex.split(found[1])[1:])
    n_first = f"encoder.first_steps={first_steps.replace(',', '')}"
    mixed = "discriminator.architecture=mixed", n_first, "encoder.weight=10", f"training.max_steps={max_steps}"
    changed = differences(config, earlier("without an encoder", *mixed, *then))
    assert changed <= {"training.lr_anneal_every", "training.fid_every"}
    assert config.training.max_steps == max_steps and config.milestones == (max_steps * 7 // 9,)  # as it was decided then


def test_the_note_continues_runs_with_8000_first_steps():
    found = re.search(r"with 8,000 first steps\*\*, of 9,200 steps, continues with `(--set\s[^`]*)`", NOTE)
    config = load_config(None, shlex.split(found[1])[1:])
    assert (config.first_unrefined, config.milestones) == (8850, (8675, 8850, 9025))
    assert config.discriminator.projected_weight == 2
    few = "`few_images.yaml` with 5,000 steps continues with `--set 'training.lr_anneal_every=[4250,4500,4750]'`"
    assert few in " ".join(NOTE.split())


def test_the_note_continues_runs_with_lighter_heads():
    found = re.search(r"heads of weight 2\*\*, of 4,900 steps, continues with `(--set\s[^`]*)`", NOTE)
    assert load_config(None, shlex.split(found[1])[1:]).discriminator.projected_weight == 2
    found = re.search(r"heads of weight 1\*\*, of 9,900 steps, continues with `(--set\s[^`]*)`", NOTE)
    config = load_config(None, shlex.split(found[1])[1:])
    assert (config.projected_weight, config.training.max_steps) == (1, 9900)
    assert (config.encoder.first_steps, config.milestones) == (8000, (8850, 9200, 9550))


def test_the_note_continues_runs_that_were_refined_to_their_last_step():
    found = re.search(r"with CCSR to its last step\*\*, of 9,900 steps, continues with `(--set\s[^`]*)`", NOTE)
    config = load_config(None, shlex.split(found[1])[1:])
    assert (config.training.model_average_beta, config.milestones) == (0.998, (8850, 9200, 9550))
    assert (config.encoder.first_steps, config.discriminator.projected_weight) == (8000, 2)
    assert resolve(config, trained=config_of_before()).unrefined_steps == 0


def test_film_64_continues_runs_of_the_first_default():
    assert "`python train.py --config film_64 --set expname=default`" in NOTE
    assert differences(load_config("film_64", ["expname=default"]), earlier("first")) <= MAY_CHANGE
