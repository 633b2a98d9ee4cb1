"""Files of principal directions: what was written is read, and what is no such file is told."""

import json

from graf.checkpoints.directions_file import load_directions, write_directions
from graf.errors import GrafError
from graf.models.directions import PARTS, Principal

import pytest
import torch


@pytest.fixture
def directions():
    shape = Principal(torch.tensor([[1.0, 2.0], [0.1, -0.3]]), torch.tensor([2.0, 0.5]), torch.tensor([0.75, 0.25]))
    return {"shape": shape, "appearance": Principal(torch.empty(0, 0), torch.empty(0), torch.empty(0))}


def test_directions_come_back_bit_for_bit(directions, tmp_path):
    file = write_directions(tmp_path / "directions.json", directions, {"step": 5})
    assert json.loads(file.read_text())["step"] == 5
    read = load_directions(file)
    for part in PARTS:
        for name in ("offsets", "deviations", "shares"):
            assert torch.equal(getattr(read[part], name), getattr(directions[part], name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("format"), "not a file of directions"),
        (lambda content: content.pop("shape"), "shape: damaged"),
        (lambda content: content["shape"].append({}), "shape: damaged"),
        (lambda content: content["shape"][0].update(offset=[1.0]), "shape: damaged"),
        (lambda content: content["shape"][0].update(offset=["a", "b"]), "shape: damaged"),
        (lambda content: content["shape"][0].update(share=[1.0]), "shape: damaged"),
    ],
)
def test_a_damaged_file_is_told_by_its_name(directions, tmp_path, change, message):
    file = write_directions(tmp_path / "directions.json", directions, {})
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(GrafError, match=f"directions.json: {message}"):
        load_directions(file)


@pytest.mark.parametrize(("text", "message"), [("{", "damaged, or not JSON"), ("[]", "not a file of directions")])
def test_a_file_of_something_else_is_told(tmp_path, text, message):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(GrafError, match=f"other.json: {message}"):
        load_directions(file)
    with pytest.raises(GrafError, match="none.json: cannot be read"):
        load_directions(tmp_path / "none.json")
