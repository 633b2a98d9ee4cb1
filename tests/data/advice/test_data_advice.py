"""What users are told about their data sets before training, by the sets that they come with; and nothing about sound ones."""

import json
import logging
import math
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

from graf.camera import azimuth_and_v, poses_at
from graf.config import CONFIG_DIR, config_of_ours, load_config
from graf.data import build_dataset
from graf.data.advice.names import hint_of_names
from graf.data.advice.summary import log_summary, log_warnings
from graf.data.advice.warnings import steps_for, too_few_steps

import numpy as np
import pytest
import torch
from command_line import ROOT, call
from PIL import Image, ImageDraw
from test_data_images import SHARED, put_transforms

SIDE = 16
DOCS = ROOT / "docs"


def config(folder: Path, *overrides: str):
    datadir = f"data.datadir={json.dumps(str(folder))}"
    return load_config(None, ["data.type=images", datadir, f"data.imsize={SIDE}", "training.batch_size=1", *overrides])


@pytest.fixture
def told(caplog):
    """What is said about the images of a config: the summary, and its warnings alone."""

    def tell(config) -> tuple[str, str]:
        dataset = build_dataset(config)
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="graf"):
            log_summary(dataset, config)
        return caplog.text, "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)

    return tell


def photographs(folder: Path, n: int, busy: bool = False, mode: str = "RGB") -> Path:
    """n images of faces: other colours, the eyes always at the same place, before a white wall or before noise."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(n):
        behind = rng.integers(0, 256, (4, 4, 3), np.uint8) if busy else np.full((4, 4, 3), 255, np.uint8)
        image = Image.fromarray(behind).resize((SIDE, SIDE), Image.Resampling.NEAREST).convert(mode)
        if mode == "RGBA":
            image.putalpha(0)
        draw = ImageDraw.Draw(image)
        for box in ((3, 3, 12, 12), (5, 9, 10, 12)):
            draw.ellipse(box, fill=tuple(rng.integers(60, 255, 3).tolist()))
        draw.rectangle((5, 6, 6, 7), fill="black")
        draw.rectangle((9, 6, 10, 7), fill="black")
        image.save(folder / f"IMG_{index:04d}.png")
    return folder


def test_identical_photographs(told, tmp_path):
    folder = photographs(tmp_path / "cup", 1)
    for index in range(1, 39):
        (folder / f"IMG_{index:04d}.png").write_bytes((folder / "IMG_0000.png").read_bytes())
    said, warned = told(config(folder))
    assert "39, 1 of them different, at 16 x 16 pixels" in said
    assert "38 of 39 images repeat others" in warned and "38 identical, such as IMG_0038.png of IMG_0000.png" in warned
    twin = tmp_path / "saucer" / "IMG_0000.png"
    twin.parent.mkdir()
    twin.write_bytes((folder / "IMG_0000.png").read_bytes())
    assert "such as saucer/IMG_0000.png of cup/IMG_0000.png" in told(config(tmp_path))[1]
    assert "little to learn from: 1 different image." in warned and "at least 500 photographs of 50 objects" in warned
    assert "random by data.hflip: true" in warned and "nerfstudio" in warned


def test_forty_views_of_one_object(told, tmp_path):
    """A turntable before a white wall, with cameras in the names."""
    views = photographs(tmp_path / "car", 40)
    for index, file in enumerate(sorted(views.iterdir())):
        file.rename(views / f"0_{9 * index:04d}.png")
    said, warned = told(config(views, "data.labels=filename", "data.v=[0.5]"))
    assert "1, by folders and file names" in said
    assert "from file names: azimuths all around (largest gap 9.0 degrees), 0 to 0 degrees above the horizon" in said
    assert "little to learn from: 40 different images; 1 object, by folders and file names." in warned
    assert "hflip" not in warned  # which is a fault where cameras are known
    assert "no cameras" not in said and "background" not in warned and "repeat" not in warned


def test_aligned_faces_before_busy_backgrounds(told, tmp_path):
    said, warned = told(config(photographs(tmp_path / "faces", 24, busy=True)))
    assert "none, so they are sampled: azimuth 0 to 360 degrees" in said and "busy in 24 of 24 images" in said
    assert "No field can hold another background for each photograph" in warned and "; cut the objects out" in warned
    assert "over 360 degrees" in said and "set data.camera_prior=front data.hflip=true" in said
    assert "not told by the names" in said and "cameras: training can do without" in said and "silhouettes: save" in said


def test_faces_seen_from_the_front_may_have_walls_behind_them(told, tmp_path):
    faces = photographs(tmp_path / "faces", 24, busy=True)
    for front in (("data.umin=-0.1", "data.umax=0.1"), ("data.camera_prior=front",)):
        said, warned = told(config(faces, *front))
        assert "busy in 24 of 24 images" in said
        assert "No field" not in warned and "no cameras" not in said


@pytest.mark.parametrize(("background", "warns"), [("white", False), ("[0.5, 0.5, 0.5]", True)])
def test_a_wall_of_another_colour_than_the_background_of_the_field(told, tmp_path, background, warns):
    _, warned = told(config(photographs(tmp_path / "faces", 8), f"data.background={background}"))
    assert ('--set "data.background=[1,1,1]"' in warned) == warns


def posed(folder: Path, n: int) -> Path:
    """n cut-out images of as many objects, with cameras all around."""
    files = sorted(photographs(folder / "views", n, mode="RGBA").iterdir())
    frames = []
    for index, file in enumerate(files):
        file.rename(folder / f"car{index}_x.png")
        pose = poses_at(torch.tensor(360.0 * index / n), torch.tensor(0.4), 3.6).tolist()
        frames.append({"file_path": f"car{index}_x.png", "transform_matrix": [*pose, [0, 0, 0, 1]]})
    put_transforms(folder, frames, camera_angle_x=math.radians(32))
    return folder


def test_many_objects_cut_out_with_cameras_are_not_warned_of(told, tmp_path):
    said, warned = told(config(posed(tmp_path, 500)))
    assert warned == "" and "no cameras" not in said
    for line in (
        "500, another in each image",
        "background  transparent",
        "opacity     judged",
        "missing     nothing",
        "from transforms.json: azimuths all around (largest gap 0.7 degrees), 12 to 12 degrees",
    ):
        assert line in said


def test_cameras_of_an_estimator_that_guesses_are_warned_of(told, tmp_path):
    file = posed(tmp_path, 500) / "transforms.json"
    content = json.loads(file.read_text())
    for confidence, warned in ((0.4, True), (0.6, False)):
        for index, frame in enumerate(content["frames"]):
            frame["confidence"] = confidence + 0.1 * (-1) ** index
        file.write_text(json.dumps(content))
        assert ("their mean confidence is 0.40, where guessing has 0.08" in told(config(tmp_path))[1]) == warned


def test_one_image_too_few_is_warned_of(told, tmp_path):
    few = posed(tmp_path, 499)
    warned = told(config(few))[1]
    assert "little to learn from: 499 different images." in warned and "Or add photographs of other objects" in warned
    assert "inherit_from: few_images.yaml" in warned
    warned = told(config(few, "discriminator.augment=true"))[1]  # as a config has that inherits from it
    assert "without --max_steps. Add photographs of other objects" in warned and "inherit_from" not in warned


def test_folders_of_few_images_may_show_an_object_each(told, tmp_path):
    for name in ("a", "b"):
        photographs(tmp_path / name, 99)
    assert "each of 2 folders is a class, with 99 images on the mean" in told(config(tmp_path))[1]
    assert "is a class" not in told(config(tmp_path, "discriminator.condition=none"))[1]
    told_by_loss = "discriminator.condition=none", "discriminator.label_loss=MCE", "discriminator.architecture=graf"
    assert "is a class" in told(config(tmp_path, *told_by_loss))[1]
    photographs(tmp_path / "b", 101)
    assert "is a class" not in told(config(tmp_path))[1]


@pytest.mark.parametrize("labels", ["auto", "none"])
def test_the_built_in_toy_cars_are_not_warned_of(told, tmp_path, labels):
    cars = load_config(
        None,
        ["data.n_images=4", "data.imsize=16", f"data.datadir={tmp_path}", "training.batch_size=4", f"data.labels={labels}"],
    )
    said, warned = told(cars)
    assert warned == "" and "4, another in each image" in said and ("no cameras" in said) == (labels == "none")


def test_training_tells_the_warnings_alone(caplog, tmp_path):
    settings = config(photographs(tmp_path / "faces", 8, busy=True))
    dataset = build_dataset(settings)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="graf"):
        log_warnings(dataset, settings)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert "what will be learned" not in caplog.text


OPTIONS = {
    "real_cars": ("data.fov=50", "data.radius=2.75", "data.near=1.6", "data.far=3.9"),
    "cars": (),
    "turntables": ("data.v=[0.5, 0.4, 0.3, 0.2]",),
    "toys/car_posed": ("data.fov=20", "data.radius=5.89", "data.near=4.85", "data.far=6.95"),
    "cats": (),
}
TOLD = {
    "real_cars": ["the cameras stand 5 to 9 degrees above the horizon, but"],
    "turntables": ["little to learn from: 3 objects", "the cameras stand 0 to 37 degrees above the horizon, but"],
    "toys/car_posed": [
        "little to learn from: 400 different images; 10 objects",
        "the cameras stand 0 to 68 degrees above the horizon, but",
    ],
    "cats": ["the backgrounds, by the edges"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_real_sets(told, name):
    if not (SHARED / name).is_dir():
        pytest.skip("the shared real sets are not here")
    warned = told(config(SHARED / name, *OPTIONS[name]))[1].splitlines()
    assert [line[: len(start)] for line, start in zip(warned, TOLD.get(name, []), strict=True)] == TOLD.get(name, [])


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (("car3-066-153", "car3-066-207"), "<object>-<elevation_deg>-<azimuth_deg>"),
        (("bus_a_30_10.5", "bus_a_30_350"), "<object>_<elevation_deg>_<azimuth_deg>"),
        (("20240714_150107", "20240714_150201"), None),
        (("IMG_0001", "IMG_0002"), None),
        (("a_1_2", "b", "c"), None),
    ],
)
def test_names_that_may_hold_angles_are_pointed_out(told, tmp_path, names, pattern):
    views = photographs(tmp_path / "car", len(names))
    for file, name in zip(sorted(views.iterdir()), names, strict=True):
        file.rename(views / f"{name}.png")
    said, _ = told(config(views, "data.labels=none", "training.batch_size=1"))
    assert (f'"data.name_pattern={pattern}" reads them' in said) == (pattern is not None)
    assert ("data.name_pattern=" in said) == (pattern is not None)


def each(*objects, numbers):
    return [f"{name}{number}" for name in objects for number in numbers]


SHOES = "shoe1_", "shoe2_", "shoe3_"
QUARTERS = ("000", "090", "180", "270")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (each(*SHOES, numbers=QUARTERS), "if shoe1_000 has an azimuth in degrees, --set PATTERN=<object>_<azimuth_deg>"),
        (each(*(f"shoe_{i}_" for i in (1, 2, 3)), numbers=QUARTERS), "PATTERN=<object>_<azimuth_deg>"),
        (each("obj1__", "obj2__", "obj3__", numbers=range(0, 40, 5)), "PATTERN=<object>__<azimuth_deg>"),
        (
            each(*SHOES, numbers=(-90, 0, 90, 180)),
            "if shoe1_-90 has an azimuth in degrees, --set PATTERN=<object>_<azimuth_deg>",
        ),
        (
            each("a/", "b/", "c/", numbers=("0.0", "22.5", "45.0", "67.5")),
            "if 0.0 has an azimuth in degrees, --set PATTERN=<az",
        ),
        ([*each(*SHOES, numbers=QUARTERS), "cover_1", "IMG_2041", "b_360"], "PATTERN=<object>_<azimuth_deg>"),
        (
            each("a-", "b-", "c-", numbers=("01", "02", "03", "04", "05", "06")),
            "if a-01 is one of a whole turn's 6 pictures, --set PATTERN=<object>-<index>\" data.turntable_step_deg=60 ",
        ),
        (each("cat_", numbers=range(0, 350, 10)), None),  # a number each, as of any photographs
        (each("cats/", "dogs/", numbers=range(1, 150)), None),
        (each("a_", "b_", "c_", numbers=range(3)), None),
        (each("a_", "b_", "c_", numbers=(0, 100, 200, 400)), None),
        ([*each("a_", "b_", "c_", numbers=QUARTERS), *(f"{chr(ord('d') + i)}" for i in range(13))], None),
        (["shoe"], None),
    ],
)
def test_names_with_a_number_that_several_objects_have_are_pointed_out(names, hint):
    said = hint_of_names(SimpleNamespace(files=[f"photos/{name}.png" for name in names]), load_config().data)
    assert (hint.replace("PATTERN", '"data.name_pattern') in said) if hint else said is None


@pytest.mark.parametrize(
    ("numbers", "azimuths"),
    [(QUARTERS, [0, 90, 180, 270]), (("1", "2", "3", "4"), [90, 180, 270, 0]), (("-90", "0", "90", "180"), [270, 0, 90, 180])],
)
def test_what_the_hint_names_reads_the_cameras(tmp_path, numbers, azimuths):
    for name in each(*SHOES, numbers=numbers):
        Image.new("RGB", (SIDE, SIDE)).save(tmp_path / f"{name}.png")
    unposed = config(tmp_path, "data.labels=none")
    said = hint_of_names(build_dataset(unposed), unposed.data)
    settings = shlex.split(re.search("--set (.*?) reads", said)[1].replace("[V]", "[0.4]"))
    posed = build_dataset(config(tmp_path, *settings))
    found = {
        Path(file).stem: azimuth for file, azimuth in zip(posed.files, azimuth_and_v(posed.labels.pose_c2w)[0], strict=True)
    }
    for number, azimuth in zip(numbers, azimuths, strict=True):
        assert found[f"shoe2_{number}"] % 360 == pytest.approx(azimuth, abs=1e-3)


IMAGES = "data.type=images"


@pytest.mark.parametrize(
    ("name", "overrides", "n_images", "posed", "said"),
    [
        ("default", [], 2048, True, None),
        ("default", [IMAGES], 500, True, "4900 is for toy cars; images with cameras take about 6,000: --max_steps 6000, or "),
        (
            "default",
            [IMAGES],
            500,
            False,
            "images without cameras take about 20,000 (if their names tell the cameras, set data.",
        ),
        ("default", [IMAGES, "data.camera_prior=front"], 500, False, "--max_steps 10000, or training.max_steps: 10000 in "),
        ("default", [IMAGES], 499, False, None),  # for which few_images.yaml is advised
        ("default", [IMAGES, "training.max_steps=4000"], 500, False, None),  # as the user wants it
        ("convolutional", [IMAGES], 500, True, "4500 is for toy cars"),
        ("safe_training", [IMAGES], 500, False, None),
        ("faces_64", [IMAGES], 500, False, None),
        ("carla_64", [], 500, False, None),
    ],
)
def test_images_are_not_trained_on_for_the_steps_of_toy_cars_without_a_word(name, overrides, n_images, posed, said):
    found = too_few_steps(load_config(name, overrides), config_of_ours(name), n_images, posed)
    assert (said in found[0]) if said else not found


@pytest.mark.parametrize(("settings", "cameras"), [(["data.v=[0.4]"], "with"), (["data.labels=none"], "without")])
def test_a_run_tells_of_too_few_steps_by_what_is_known_of_its_images(tmp_path, monkeypatch, settings, cameras):
    monkeypatch.setattr("graf.data.advice.warnings.FEW_IMAGES", 16)
    for index in range(16):
        Image.new("RGB", (SIDE, SIDE), (16 * index, 0, 0)).save(tmp_path / f"0_{20 * index:03d}.png")
    own = tmp_path / "own.yaml"
    own.write_text(f"inherit_from: {CONFIG_DIR / 'smoke.yaml'}\ndata: {{type: images, datadir: {json.dumps(str(tmp_path))}}}\n")
    said = call("train.py", "--config", str(own), "--device", "cpu", "--dry_run", "--set", *settings, cwd=tmp_path)
    assert f"training.max_steps: 20 is for toy cars; images {cameras} cameras take about " in said


def test_the_documentation_has_the_numbers_of_steps_that_are_advised():
    with_cameras, without = (f"{steps_for(500, posed):,}" for posed in (True, False))
    row = next(
        line for line in (DOCS / "configuration.md").read_text(encoding="utf-8").splitlines() if "`training.max_steps`" in line
    )
    assert f"with cameras {with_cameras}, without {without}" in row
    for page in ("README.md", "README.zh-TW.md", "docs/bad_pictures.md"):
        text = (DOCS.parent / page).read_text(encoding="utf-8").replace(",", "")
        assert f"--max_steps {without.replace(',', '')}" in text and with_cameras.replace(",", "") in text
