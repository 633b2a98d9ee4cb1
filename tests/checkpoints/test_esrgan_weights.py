"""Public weights in their three layouts: taken whole, or refused with a reason."""

import logging
import re

from graf.errors import CheckpointError
from graf.foreign.esrgan import load_esrgan_weights
from graf.models.rrdb import RRDBNet

import pytest
import torch
import torch.nn.functional as F

BLOCKS = 2
OLD_NAMES = {"conv_first": "model.0", "conv_body": f"model.1.sub.{BLOCKS}", "conv_up1": "model.3", "conv_up2": "model.6"}
OLD_NAMES |= {"conv_hr": "model.8", "conv_last": "model.10"}
NEW_NAMES = {"conv_body": "trunk_conv", "conv_up1": "upconv1", "conv_up2": "upconv2", "conv_hr": "HRconv"}


def network(seed, scale_factor=4, blocks=BLOCKS, nf=8, gc=4):
    torch.manual_seed(seed)
    net = RRDBNet(scale_factor, blocks, nf, gc)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return net


def old_architecture(weights):
    return renamed(weights, r"model.1.sub.\1.RDB\2.\3.0", OLD_NAMES)


def new_architecture(weights):
    return renamed(weights, r"RRDB_trunk.\1.RDB\2.\3", NEW_NAMES)


def renamed(weights, block, others):
    found = {}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        module = re.sub(r"^body\.(\d+)\.rdb(\d)\.(conv\d)$", block, module)
        found[f"{others.get(module, module)}.{kind}"] = tensor
    return found


LAYOUTS = {
    "old": old_architecture,
    "new": new_architecture,
    "basicsr": dict,
    "params": lambda weights: {"params": dict(weights)},
    "params_ema": lambda weights: {"params": {"stale": torch.zeros(1)}, "params_ema": dict(weights)},
}


def saved(path, content):
    torch.save(content, path)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_network(layout, tmp_path, caplog):
    source, target = network(0), network(1)
    path = saved(tmp_path / "weights.pth", LAYOUTS[layout](source.state_dict()))
    with caplog.at_level(logging.INFO, "graf"):
        load_esrgan_weights(target, path)
    images = torch.rand(1, 3, 5, 6)
    assert torch.equal(target(images), source(images))
    assert caplog.messages == [f"{path}: took 72 of 72 tensors"]  # 2 x (15 x 2 + 6)


def test_names_of_published_files():
    """The names that ESRGAN's own conversion script gives: the renaming of these tests must match it."""
    old, new = old_architecture(network(0).state_dict()), new_architecture(network(0).state_dict())
    assert old.keys().isdisjoint(new) and len(old) == len(new) == 72
    assert {"model.0.weight", "model.1.sub.1.RDB3.conv5.0.bias", "model.1.sub.2.weight", "model.10.bias"} < old.keys()
    assert {"conv_first.weight", "RRDB_trunk.1.RDB3.conv5.bias", "trunk_conv.weight", "HRconv.bias"} < new.keys()


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    source, target = network(0), network(1)
    safetensors.save_file(source.state_dict(), tmp_path / "weights.safetensors")
    load_esrgan_weights(target, tmp_path / "weights.safetensors")
    assert torch.equal(target.conv_last.weight, source.conv_last.weight)


def test_a_x4_network_at_scale_2_is_itself_upon_the_means(tmp_path, caplog):
    source, target = network(0), network(1, scale_factor=2)
    with caplog.at_level(logging.INFO, "graf"):
        load_esrgan_weights(target, saved(tmp_path / "x4.pth", source.state_dict()))
    assert caplog.messages[0].endswith(
        "took 72 of 72 tensors; conv_first.weight, of a x4 network, sees the means of 2 x 2 pixels"
    )
    images = torch.rand(1, 3, 6, 10)
    torch.testing.assert_close(target(images), source(F.avg_pool2d(images, 2)))


def test_what_another_scale_replaces_is_named_and_left(tmp_path, caplog):
    """A x2 network of the pixel-unshuffle kind: everything but its first convolution, of 12 channels, serves x4."""
    source, target = network(0, scale_factor=2), network(1)
    first = target.conv_first.weight.clone()
    with caplog.at_level(logging.INFO, "graf"):
        load_esrgan_weights(target, saved(tmp_path / "x2.pth", source.state_dict()))
    assert torch.equal(target.conv_first.weight, first)
    assert torch.equal(target.conv_up2.weight, source.conv_up2.weight)
    assert "took 71 of 72 tensors" in caplog.messages[0]
    assert "conv_first.weight" in caplog.messages[1]


def old_x2(path):
    """A file of the old architecture with one upsampling, behind which layers have other numbers."""
    weights = old_architecture({k: v for k, v in network(0).state_dict().items() if not k.startswith("conv_up2")})
    return saved(path, {k.replace("model.8.", "model.5.").replace("model.10.", "model.7."): v for k, v in weights.items()})


def test_an_old_x2_network_does_not_serve_scale_2_whose_trunk_sees_folded_pixels(tmp_path):
    with pytest.raises(CheckpointError, match=r"old_x2\.pth: of the old architecture at scale 2"):
        load_esrgan_weights(network(1, scale_factor=2), old_x2(tmp_path / "old_x2.pth"))


def test_an_old_x2_network_lacks_one_upsampling(tmp_path, caplog):
    target = network(1)
    load_esrgan_weights(target, old_x2(tmp_path / "old_x2.pth"))
    assert torch.equal(target.conv_last.weight, network(0).conv_last.weight)
    assert "conv_up2.bias, conv_up2.weight" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("other", "found"),
    [({"blocks": 3}, "num_blocks 3, nf 8, gc 4"), ({"nf": 16}, "nf 16, gc 4"), ({"gc": 2}, "nf 8, gc 2")],
)
def test_another_size_is_refused_with_both_sizes(tmp_path, other, found):
    path = saved(tmp_path / "other.pth", network(0, **other).state_dict())
    target = network(1)
    before = target.conv_last.bias.clone()
    with pytest.raises(CheckpointError, match=f"other.pth.*{found}, the config num_blocks 2, nf 8, gc 4"):
        load_esrgan_weights(target, path)
    assert torch.equal(target.conv_last.bias, before)


@pytest.mark.parametrize(
    "missing",
    [
        ("body.1.rdb2.conv3.bias",),
        ("conv_first.bias",),
        ("conv_first.weight",),
        ("conv_up2.weight",),
        ("conv_up2.weight", "conv_up2.bias"),
        ("conv_up1.weight", "conv_up1.bias", "conv_up2.weight", "conv_up2.bias"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_missing_is_named_and_the_file_refused(tmp_path, layout, missing):
    weights = {name: tensor for name, tensor in network(0).state_dict().items() if name not in missing}
    target = network(1)
    before = target.conv_last.weight.clone()
    with pytest.raises(
        CheckpointError, match=rf"torn\.pth.*{missing[0].replace('.', '[.]')}|the file is incomplete|known layout"
    ):
        load_esrgan_weights(target, saved(tmp_path / "torn.pth", LAYOUTS[layout](weights)))
    assert torch.equal(target.conv_last.weight, before)


def test_a_grey_input_and_wider_upsampling_are_of_no_other_scale_factor(tmp_path):
    """Nor is a first convolution of 12 channels and other filters."""
    other = {"conv_first.weight": torch.zeros(8, 1, 3, 3)}, {"conv_up1.weight": torch.zeros(16, 8, 3, 3)}
    for replaced in (*other, {"conv_first.weight": torch.zeros(16, 12, 3, 3)}, {"conv_first.weight": torch.zeros(8, 12, 1, 1)}):
        with pytest.raises(CheckpointError, match="1 tensors do not match"):
            load_esrgan_weights(network(1), saved(tmp_path / "other.pth", network(0).state_dict() | replaced))


@pytest.mark.parametrize("content", [{"layers.0.weight": torch.zeros(1)}, {"a": 3}, [torch.zeros(1)], {}])
def test_other_content_is_refused(tmp_path, content):
    with pytest.raises(CheckpointError, match=r"foreign\.pth"):
        load_esrgan_weights(network(1), saved(tmp_path / "foreign.pth", content))


@pytest.mark.parametrize("name", ["noise.pth", "noise.safetensors"])
def test_a_damaged_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"noise" * 10)
    with pytest.raises(CheckpointError, match=name):
        load_esrgan_weights(network(1), tmp_path / name)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere.pth: no such file"):
        load_esrgan_weights(network(1), tmp_path / "nowhere.pth")
