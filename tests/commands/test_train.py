"""What train.py continues, and with what."""

from graf.checkpoints.checkpoint import NEWEST, save_checkpoint
from graf.commands.train import continued
from graf.errors import CheckpointError
from graf.training.state import TrainState

import pytest
import torch


def test_a_run_on_toy_cars_does_not_go_on_with_photographs_unless_it_is_named(smoke, tmp_path):
    config = smoke("data.alpha=judge")
    save_checkpoint(tmp_path / NEWEST, TrainState(config, torch.device("cpu")).checkpoint())
    photographs = smoke("data.type=images", "data.datadir=photos")
    assert continued(smoke(), tmp_path / NEWEST, named=False).data.alpha == "judge"
    with pytest.raises(CheckpointError, match=r"of a run on toy_cars, where data.type is images now; --set expname=NAME"):
        continued(photographs, tmp_path / NEWEST, named=False)
    assert continued(photographs, tmp_path / NEWEST, named=True).data.alpha == "judge"
    assert continued(photographs, None, named=False) == photographs
