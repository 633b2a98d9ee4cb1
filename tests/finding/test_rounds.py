"""Rounds that find cameras: schedules, written images, and what an estimator reads."""

import dataclasses
import json
from pathlib import Path

from graf.camera import Labels, azimuth_and_v, poses_at
from graf.config import PoseConfig, config_to_dict, load_config, override
from graf.config.advice import advice_on_steps
from graf.data import build_dataset, hull
from graf.data.advice import warnings
from graf.data.toy_cars import unseen_toy_cars
from graf.data.views import Views
from graf.errors import GrafError
from graf.finding import rounds
from graf.finding.rounds import FoundCameras, Round
from graf.finding.sheet import surest, surest_photographs
from graf.pictures.outputs import as_uint8, write_image
from graf.pose.mixture import CameraMixture
from graf.runtime.files import write_text

import pytest
import torch
import yaml


class Shots(Views):
    """Photographs of one colour each, of two classes and without cameras."""

    def __init__(self, n: int, channels: int = 3, posed: bool = False):
        classes = torch.arange(n) % 2
        labels = Labels.of_poses(poses_at(torch.full((n,), 90.0), torch.full((n,), 0.3), 3.6)) if posed else None
        super().__init__([f"car{i}/a.png" for i in range(n)], ["bus", "mini car"], classes, labels, "")
        self.channels = channels

    def read(self, index: int) -> torch.Tensor:
        return torch.full((self.channels, 8, 8), 10 * index + 5, dtype=torch.uint8)


def found_of(confidence: list[float]) -> FoundCameras:
    n = len(confidence)
    return found_at(10.0 * torch.arange(n), torch.full((n,), 0.3), torch.tensor(confidence))


def found_at(azimuth_deg: torch.Tensor, v: torch.Tensor, confidence: torch.Tensor) -> FoundCameras:
    return FoundCameras(azimuth_deg, v, confidence, either_end=confidence)


def test_rounds_share_the_steps_and_are_one_shortened_schedule(tmp_path):
    config = load_config(
        None,
        [
            *("training.max_steps=4800", "discriminator.low_res_steps=1600", "training.lr_anneal_every=[4000]"),
            *("encoder.first_steps=100", "encoder.weight=1"),
        ],
    )
    first = rounds.unposed(config, Round(tmp_path, 0))
    assert (first.training.max_steps, first.discriminator.low_res_steps) == (600, 600)
    assert first.data.labels == "none" and first.milestones == ()
    later = []
    for number in (1, 2, 3):
        later.append(rounds.posed(config, Round(tmp_path, number), 3, [tmp_path], "none"))
    assert not any(one.encodes_images for one in (first, *later))  # cameras are still being found
    assert [one.training.max_steps for one in later] == [700, 2100, 4200]
    assert {one.discriminator.low_res_steps for one in later} == {1400}
    assert {one.milestones for one in later} == {(3500,)}
    assert {one.data.labels for one in later} == {"transforms"}
    assert [one.training.fid_every > 0 for one in (first, *later)] == [False, False, False, True]
    assert [one.run_dir for one in later] == [Round(tmp_path, number).generator for number in (1, 2, 3)]
    at_once = rounds.posed(override(config, ["discriminator.low_res_steps=0"]), Round(tmp_path, 1), 3, [tmp_path], "none")
    assert at_once.discriminator.low_res_steps == 0


ENCODER = ("encoder.first_steps=100", "encoder.weight=10")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), True),
        (("encoder.first_steps=0",), True),
        (("encoder.first_steps=0", "encoder.weight=0"), False),
        (("data.background_model=plane", "data.alpha=ignore"), False),
        (("encoder.finds_cameras=true", "data.labels=none", "data.camera_prior=front", "data.hflip=true"), False),
    ],
)
def test_the_last_generator_has_the_encoder_that_it_can_train(settings, expected):
    config = load_config(None, ["training.max_steps=4800", "discriminator.architecture=graf", *ENCODER, *settings])
    assert rounds.last_has_encoder(config) == expected
    assert rounds.steps_of(config, 2, 0) == [1400, 4800 if expected else 4200]


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 1, True), (0.4, 1.4, True), (-0.5, 0.5, True), (0, 0.99, False), (0.2, 0.7, False)]
)
def test_azimuths_go_all_around(low, high, expected):
    assert rounds.goes_all_around(load_config(None, [f"data.umin={low}", f"data.umax={high}"])) == expected


def test_steps_are_of_each_part_that_there_is():
    encoding = load_config(None, ["training.max_steps=4800", *ENCODER])
    assert rounds.steps_of(encoding, 1, 2) == [4800, 800]
    assert rounds.steps_of(encoding, 2, 1)[1:] == [4800, 800] and rounds.steps_of(encoding, 1, 0) == [4800]
    assert rounds.steps_of(override(encoding, ["data.umax=0.5"]), 1, 2) == [4800]


def test_a_correction_only_reconstructs(tmp_path):
    settings = ["training.max_steps=4800", "training.lr_anneal_every=[700]", "training.fid_every=100", *ENCODER]
    this, box = Round(tmp_path, 2, correction=1), (-1.0,) * 3 + (1.0,) * 3
    config = rounds.correction_config(load_config(None, [*settings, "ccsr.unrefined_steps=500"]), this, [tmp_path], box)
    assert (config.training.max_steps, config.encoder.first_steps, config.encoder.weight) == (800, 800, 0)
    assert (config.milestones, config.low_res_steps, config.unrefined_steps, config.pace_changes) == ((), 0, 0, ())
    assert (config.training.fid_every, config.training.save_best) == (0, "none")
    assert (config.data.labels, config.data.datadir, config.data.box) == ("transforms", (str(tmp_path),), box)
    assert config.run_dir == this.generator == tmp_path / "round_2" / "correction_1" / "generator"
    assert this.name == "round 2, correction 1" and advice_on_steps(config) == []


def test_the_last_generator_with_an_encoder_is_all_that_was_asked_for(tmp_path):
    asked = load_config(None, ["data.type=images", "data.roll_deg=90", "training.max_steps=4800"])
    last = rounds.last_config(asked, Round(tmp_path, 1), [tmp_path], "none")
    assert (last.data.labels, last.data.roll_deg, last.data.box) == ("transforms", 0, "none")
    assert last.run_dir == tmp_path / "round_1" / "generator"
    alike = dataclasses.replace(last, data=asked.data, expname=asked.expname)
    assert dataclasses.replace(alike, training=dataclasses.replace(last.training, outdir=asked.training.outdir)) == asked


def test_corrected_cameras_are_kept_by_the_photographs_names(tmp_path):
    shots, file = Shots(4), tmp_path / "cameras.json"
    found = FoundCameras(*torch.rand(4, 4, generator=torch.Generator().manual_seed(0)))
    shots.files = [f"photos/car{row}/a.png" for row in range(4)]
    rounds.keep_cameras(file, shots, found)
    assert all(map(torch.equal, rounds.kept_cameras(file, shots), found))
    shots.files = [f"{tmp_path}/elsewhere/car{row}/a.png" for row in (2, 0, 3)]  # in another order and place, without one
    assert all(torch.equal(kept, whole[[2, 0, 3]]) for kept, whole in zip(rounds.kept_cameras(file, shots), found, strict=True))
    shots.files[1] = "new/a.png"
    with pytest.raises(GrafError, match=r"json: has no camera of .*car2/a.png; its 4 photographs are others"):
        rounds.kept_cameras(file, shots)
    shots.files = ["a.png"]
    whole = {"photographs": ["a.png"]} | dict.fromkeys(FoundCameras._fields, [0.5])
    file.write_text(json.dumps(whole))
    assert rounds.kept_cameras(file, shots) == (0.5,) * 4
    bad = [{}, {"photographs": ["a.png"]}, {"photographs": 3}, *(whole | {"v": v} for v in ([], None, ["high"], [[1], [1, 2]]))]
    for damaged in ("{", *map(json.dumps, bad)):
        file.write_text(damaged)
        with pytest.raises(GrafError, match=r"is damaged .*; delete it, and its round's round.json"):
            rounds.kept_cameras(file, shots)


def test_rows_of_a_class_have_the_number_of_its_folder():
    shots = Shots(4)
    shots.class_names, shots.class_index = ["none", "car", "bus"], torch.tensor([2, 1, 1, 2])
    assert rounds.class_indices(shots).tolist() == [1, 0, 0, 1]


def test_the_last_round_alone_ends_with_steps_that_are_not_refined(tmp_path):
    config = load_config(None, ["training.max_steps=4800", "ccsr.unrefined_steps=800"])
    assert rounds.unposed(config, Round(tmp_path, 0)).unrefined_steps == 0
    later = [rounds.posed(config, Round(tmp_path, number), 2, [tmp_path], "none") for number in (1, 2)]
    assert [one.unrefined_steps for one in later] == [0, 700]


def test_low_resolution_lasts_as_long_as_in_runs_without_an_encoder(tmp_path):
    config = load_config(None, ["training.max_steps=16000", "encoder.first_steps=100", "discriminator.low_res_steps=auto"])
    later = rounds.posed(config, Round(tmp_path, 3), 3, [tmp_path], "none")
    found = [each.discriminator.low_res_steps for each in (rounds.unposed(config, Round(tmp_path, 0)), later)]
    assert found == [1500, 1500 * 7 // 8]


def test_a_narrow_start_sees_the_middle_quarter_of_the_azimuths(tmp_path):
    config = load_config(None, ["data.umin=0.2", "data.umax=0.6"])
    start = Round(tmp_path, 0, 2)
    data = rounds.narrowed(rounds.unposed(config, start), Shots(1), start).data
    assert (data.umin, data.umax) == (pytest.approx(0.35), pytest.approx(0.45))
    front = rounds.unposed(load_config(None, ["data.camera_prior=front"]), start)
    assert rounds.narrowed(front, Shots(1), start) is None


def test_rounds_after_a_narrow_start_have_its_azimuths(tmp_path):
    asked = load_config(None, ["data.umin=0.2", "data.umax=0.6"])
    first = Round(tmp_path, 0, 2)
    narrow = rounds.narrowed(rounds.unposed(asked, first), Shots(1), first)
    write_text(first.generator / "config.yaml", yaml.safe_dump(config_to_dict(narrow)))
    later = rounds.in_range_of_start(asked, first)
    assert later.data.u_range == narrow.data.u_range
    assert later.data.labels == asked.data.labels != narrow.data.labels


def test_the_box_is_around_photographs_whose_cameras_are_sure(monkeypatch):
    config = load_config(None, ["data.imsize=16"])
    cars = unseen_toy_cars(config.data, 400, seed=3)
    azimuth_deg, v = azimuth_and_v(cars.labels.pose_c2w)
    misread = torch.arange(len(cars)) % 4 == 0
    found = found_at(torch.where(misread, azimuth_deg + 90, azimuth_deg), v, 1 - misread.float())
    monkeypatch.setattr(rounds, "FEWEST_FOR_BOX", 100)
    monkeypatch.setattr(hull, "CELLS", 24)
    box = rounds.box_around(cars, found, config.data)
    misled = rounds.box_around(cars, found._replace(confidence=misread.float()), config.data)
    width, misled_width = (corners[4] - corners[1] for corners in (box, misled))
    assert 0.9 < width < 1.6 and misled_width > 1.9  # the cars are up to 0.9 wide and 1.85 long
    monkeypatch.setattr(rounds, "FEWEST_FOR_BOX", 400)  # so many are all
    assert rounds.box_around(cars, found, config.data) == rounds.box_around(
        cars, found._replace(confidence=misread.float()), config.data
    )


def test_a_silhouette_that_is_surely_misread_does_not_enlarge_the_box(monkeypatch):
    monkeypatch.setattr(rounds, "data_box", lambda views, data, held: (len(views), held))
    found = found_at(torch.zeros(1000), torch.full((1000,), 0.3), torch.rand(1000))
    assert rounds.box_around(Shots(1000), found, load_config(None).data) == (500, 0.98)


def test_the_box_is_the_asked_one_or_that_of_the_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "box_around", lambda *_: "around")
    boxes = {"asked": (-1.0,) * 3 + (1.0,) * 3, "going on": (-2.0,) * 3 + (2.0,) * 3}
    found, data = found_of([0.5]), load_config(None).data
    first, second = Round(tmp_path, 1), Round(tmp_path, 2)
    assert rounds.box_of(first.generator, Shots(1), found, data) == "around"
    first.generator.mkdir(parents=True)
    (first.generator / "config.yaml").write_text("data: {box: [-2, -2, -2, 2, 2, 2]}")
    monkeypatch.setattr(rounds, "newest_checkpoint", lambda run_dir: run_dir == first.generator)
    assert rounds.box_of(first.generator, Shots(1), found, data) == boxes["going on"]
    asked = dataclasses.replace(data, box=boxes["asked"])
    assert rounds.box_of(first.generator, Shots(1), found, asked) == boxes["asked"]
    assert rounds.posed(load_config(None), second, 2, [tmp_path], boxes["going on"]).data.box == boxes["going on"]


def test_folders_of_few_photographs_are_objects_and_no_classes(monkeypatch):
    shots, config = Shots(6), load_config(None)
    objects = rounds.in_one_class(shots, config)
    assert objects.class_names == ["photographs"] and objects.class_index.tolist() == [0] * 6
    assert (objects.files, objects.objects) == (shots.files, shots.objects)
    assert list(rounds.class_rows(objects)) == ["000_photographs"]
    shots.labels = Labels(torch.zeros(6, 3, 4), shots.class_index, torch.arange(6))
    known = rounds.in_one_class(shots, config).labels
    assert known.class_index.tolist() == [0] * 6 and known.elevation_index.tolist() == list(range(6))
    assert (
        rounds.in_one_class(shots, load_config(None, ["discriminator.architecture=graf", "discriminator.label_loss=MCE"]))
        is shots
    )
    first = Round(Path("out"), 0)
    assert config.discriminator.condition == "class_and_pose"
    assert rounds.unposed(config, first, objects).discriminator.condition == "none"  # its folders are classes in train.py
    monkeypatch.setattr(warnings, "FEWEST_OF_A_CLASS", 3)
    assert rounds.in_one_class(shots, config) is shots
    assert rounds.unposed(config, first, shots).discriminator.condition == "class_and_pose"


def test_the_surest_are_taken_of_each_class():
    confidence = torch.tensor([0.9, 0.1, 0.8, 0.4, 0.7, 0.2])  # of even rows, a class, above those of the other
    assert rounds.surest_rows(Shots(6), confidence, 2 / 3).tolist() == [0, 2, 3, 5]
    assert rounds.surest_rows(Shots(6), confidence, 0.01).tolist() == [0, 3]
    one_class = Shots(6)
    one_class.class_index[:] = 1
    assert rounds.surest_rows(one_class, confidence, 0.5).tolist() == [0, 2, 4]
    assert list(rounds.class_rows(one_class)) == ["001_mini_car"]


def test_annealing_ends_with_the_last_round(tmp_path):
    config = load_config(None, ["training.max_steps=800", "training.anneal=r3gan"])
    assert rounds.unposed(config, Round(tmp_path, 0)).training.anneal == "none"
    first = rounds.posed(config, Round(tmp_path, 1), 2, [tmp_path], "none").training
    assert (first.max_steps, first.annealing_steps, first.anneal) == (233, 700, "r3gan")


def test_the_estimator_learns_from_the_rounds_views(tmp_path):
    settings = ["data.type=images", "data.center_crop=40", "data.roll_deg=90", "data.alpha=rgba", "training.use_amp=true"]
    config = load_config(None, settings)
    of_estimator = rounds.of_estimator(PoseConfig(), config, Round(tmp_path, 2), seed=7)
    data = of_estimator.data
    assert data.datadir == (str(tmp_path / "round_2" / "views"),)
    assert (data.type, data.labels, data.alpha, data.center_crop, data.roll_deg) == ("images", "transforms", "ignore", 0, 0)
    assert of_estimator.run_dir == tmp_path / "round_2" / "estimator"
    assert of_estimator.training.seed == 7 and of_estimator.training.use_amp


def test_neither_the_first_round_nor_an_estimator_mirrors(tmp_path):
    config = load_config(None, ["data.type=images", "data.mirror=0"])
    first = rounds.unposed(config, Round(tmp_path, 0))
    of_estimator = rounds.of_estimator(PoseConfig(), config, Round(tmp_path, 1), seed=0)
    assert first.data.mirror == of_estimator.data.mirror == "none"


def test_frames_vary_half_as_much_from_round_2_on(tmp_path):
    pose, config = override(PoseConfig(), ["training.reframe=0.1"]), load_config(None)
    spreads = [rounds.of_estimator(pose, config, Round(tmp_path, number), seed=0).training.reframe for number in range(4)]
    assert spreads == [0.1, 0.1, 0.05, 0.05]


def test_the_surest_of_each_class_are_written_with_their_cameras(tmp_path):
    this, data = Round(tmp_path, 1), load_config(None, ["data.imsize=8"]).data
    found = found_of([0.9, 0.1, 0.2, 0.8, 0.7, 0.6])
    bus, mini = rounds.write_photographs(this, Shots(6), found, keep=2 / 3, data=data)
    assert [folder.name for folder in (bus, mini)] == ["000_bus", "001_mini_car"]
    frames = json.loads((bus / "transforms.json").read_text())["frames"]
    assert [frame["file_path"] for frame in frames] == ["00000.png", "00004.png"]
    assert [frame["confidence"] for frame in frames] == [0.9, 0.7]
    assert [frame["object"] for frame in frames] == ["car0/a", "car4/a"]
    config = dataclasses.replace(load_config(None), data=rounds.written(data, [bus, mini]))
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, batch_size=2))
    read = build_dataset(config)
    azimuth_deg, v = azimuth_and_v(read.labels.pose_c2w)
    torch.testing.assert_close(azimuth_deg, torch.tensor([0.0, 40.0, 30.0, 50.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(v, torch.full((4,), 0.3))
    assert [int(read.read(index).float().mean()) for index in range(4)] == [5, 45, 35, 55]


def test_cameras_of_photographs_that_are_written_are_those_of_the_crop(tmp_path):
    def cameras(center_crop):
        data = load_config(None, ["data.imsize=8", f"data.center_crop={center_crop}"]).data
        this, found = Round(tmp_path / str(center_crop), 1), found_of([0.9, 0.1])
        return [(folder / "transforms.json").read_text() for folder in rounds.write_photographs(this, Shots(2), found, 1, data)]

    assert cameras(4) == cameras(0)


def test_all_cameras_are_written_by_the_files_own_names(tmp_path):
    shots = Shots(4)
    for number, name in enumerate(("bus/a/0.png", "mini/0.png", "bus/b/1.png", "mini/1.png")):
        shots.files[number] = str(tmp_path / "photos" / name)
        write_image(tmp_path / "photos" / name, torch.zeros(3, 10, 20, dtype=torch.uint8))
    data = load_config(None, ["data.fov=90"]).data
    bus, mini = rounds.write_cameras(tmp_path / "cameras", shots, found_of([0.9, 0.1, 0.2, 0.8]), data)
    frames = json.loads(bus.read_text())["frames"]
    assert [frame["file_path"] for frame in frames] == ["a/0.png", "b/1.png"]
    assert [(frame["w"], frame["h"], round(frame["fl_x"], 3)) for frame in frames] == [(20, 10, 5.0)] * 2  # of the square crop
    assert [frame["confidence"] for frame in frames] == [0.9, 0.2]
    assert [frame["file_path"] for frame in json.loads(mini.read_text())["frames"]] == ["0.png", "1.png"]
    azimuth_deg, _ = azimuth_and_v(torch.tensor([frame["transform_matrix"] for frame in frames])[:, :3])
    torch.testing.assert_close(azimuth_deg, torch.tensor([0.0, 20.0]), atol=1e-3, rtol=0)


def test_a_photograph_that_is_gone_when_its_camera_is_written_is_named(tmp_path):
    shots = Shots(2)
    shots.files, shots.class_index, shots.class_names = [str(tmp_path / f"{i}.png") for i in range(2)], torch.zeros(2), ["all"]
    write_image(tmp_path / "0.png", torch.zeros(3, 10, 10, dtype=torch.uint8))
    with pytest.raises(GrafError, match=r"1\.png: cannot be read any more; put it back"):
        rounds.write_cameras(tmp_path / "cameras", shots, found_of([0.9, 0.1]), load_config(None).data)


def test_cameras_of_folders_in_several_places_are_written(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shots = Shots(2)
    shots.files, shots.class_index, shots.class_names = (
        ["photos/0.png", str(tmp_path / "more" / "1.png")],
        torch.zeros(2),
        ["all"],
    )
    for file in shots.files:
        write_image(Path(file), torch.zeros(3, 10, 10, dtype=torch.uint8))
    (written,) = rounds.write_cameras(Path("cameras"), shots, found_of([0.9, 0.1]), load_config(None).data)
    assert [frame["file_path"] for frame in json.loads(written.read_text())["frames"]] == ["here/photos/0.png", "more/1.png"]
    assert rounds.home_of(shots, [0, 1]) == tmp_path and rounds.home_of(shots, [0]) == Path("photos")


@pytest.mark.parametrize(
    ("files", "classes", "datadir", "homes"),
    [
        (["set/car_0.png", "set/dog_0.png", "set/car_1.png"], [0, 1, 0], ["set"], {"set": [0, 2, 1]}),
        (["set/0.png", "set/more/0.png", "set/1.png"], [0, 1, 0], ["set"], {"set": [0, 2, 1]}),
        (["a/0.png", "b/0.png", "b/in/1.png"], [0, 0, 0], ["a", "b"], {"a": [0], "b": [1, 2]}),
        (["a/0.png", "b/0.png", "b/in/1.png"], [0, 0, 0], ["?"], {"a": [0], "b": [1, 2]}),
        (["a/0.png", "b/0.png", "b/1.png"], [0, 1, 1], ["."], {"a": [0], "b": [1, 2]}),
    ],
    ids=("classes by names", "a class above another", "several folders", "a pattern", "classes by folders"),
)
def test_copies_of_the_cameras_hide_no_photographs_from_each_other(tmp_path, monkeypatch, files, classes, datadir, homes):
    monkeypatch.chdir(tmp_path)
    shots = Shots(len(files))
    shots.files, shots.class_index, shots.class_names = files, torch.tensor(classes), ["car", "dog"]
    for file in files:
        write_image(Path(file), torch.zeros(3, 10, 10, dtype=torch.uint8))
    data = load_config(None, [f"data.datadir={datadir}", "data.fov=90"]).data
    found = rounds.camera_files(Path("cameras"), shots, data)
    assert {str(home): rows for _, home, rows in found} == homes and len({file for file, _, _ in found}) == len(homes)
    rounds.write_cameras(Path("cameras"), shots, found_of([0.5] * len(files)), data)
    for file, home, rows in found:
        names = [frame["file_path"] for frame in json.loads(file.read_text())["frames"]]
        assert names == [Path(files[row]).relative_to(home).as_posix() for row in rows]


def test_photographs_that_are_counted_are_of_objects_of_their_own():
    shots = Shots(3)
    assert rounds.known_objects(shots) == shots.objects and len(set(shots.objects)) == 3
    shots.files = [f"photos/IMG_{number}.jpg" for number in range(3)]
    assert rounds.known_objects(shots) == ["0", "1", "2"]


def test_colours_before_a_background_are_written_without_it():
    opacity = torch.tensor([255, 128, 0], dtype=torch.uint8).view(1, 1, 3)
    own = torch.tensor([40, 120, 255], dtype=torch.uint8).view(3, 1, 1).expand(3, 1, 3)
    share = opacity.float() / 255
    over_white = (share * own + (1 - share) * 255).round().to(torch.uint8)
    straight = rounds.straight_alpha(torch.cat([over_white, opacity]), (1.0, 1.0, 1.0))
    assert (straight[:3, :, :2].int() - own[:, :, :2].int()).abs().max() <= 1
    assert torch.equal(straight[3:], opacity)
    assert torch.equal(rounds.straight_alpha(over_white, (1.0, 1.0, 1.0)), over_white)


def test_half_of_the_views_are_seen_as_the_round_before_found_them():
    data = load_config(None, ["data.vmin=0.4", "data.vmax=0.4"]).data
    rng = torch.Generator().manual_seed(0)
    assert rounds.view_sampler(Shots(6), data)(8, rng).pose_c2w.shape == (8, 3, 4)
    azimuth_deg, v = azimuth_and_v(rounds.view_sampler(Shots(6, posed=True), data)(2000, rng).pose_c2w)
    as_found = (v - 0.3).abs() < 1e-4
    assert 0.45 < float(as_found.float().mean()) < 0.55
    torch.testing.assert_close(azimuth_deg[as_found], torch.full((int(as_found.sum()),), 90.0))
    in_range = azimuth_deg[~as_found]
    assert float((in_range < 180).float().mean()) == pytest.approx(0.5, abs=0.06)


def test_either_end_is_as_sure_as_both_together(monkeypatch):
    """The first image is seen from 30 degrees, by 0.7, or from 210; the second from 30, by 0.7, or from 120."""
    centres = torch.tensor([[30.0, 210.0], [30.0, 120.0]])
    logits = torch.tensor([0.7, 0.3]).log().expand(2, 2)
    mixture = CameraMixture(logits, centres, torch.full((2, 2), 500.0), torch.full((2,), 0.3))
    monkeypatch.setattr(rounds, "mixtures", lambda *_: iter([mixture, mixture]))
    found = rounds.find_cameras(None, Shots(4))
    torch.testing.assert_close(found.azimuth_deg, torch.full((4,), 30.0), atol=0.1, rtol=0)
    torch.testing.assert_close(found.confidence, torch.full((4,), 0.7), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.either_end, torch.tensor([1.0, 0.7, 1.0, 0.7]), atol=1e-3, rtol=0)
    assert found.either_end.max() <= 1


def test_errors_of_held_out_views():
    found = found_at(torch.tensor([355.0, 20.0, 200.0, 90.0]), torch.tensor([0.3, 0.3, 0.3, 0.4]), torch.ones(4))
    true = poses_at(torch.tensor([5.0, 40.0, 20.0, 90.0]), torch.full((4,), 0.3), 3.6)
    errors = rounds.held_out_errors(found, true)
    assert errors["within_15_deg"] == 0.5 and errors["confused"] == 0.25
    assert errors["height"] == pytest.approx(0, abs=1e-5)
    assert sum(group["n"] for group in errors["calibration"]) == 4


def test_a_sheet_shows_photographs_in_the_column_of_their_azimuth():
    shots = Shots(3)
    found = found_at(torch.tensor([95.0, 5.0, 100.0]), torch.full((3,), 0.3), torch.tensor([0.2, 0.5, 0.9]))
    shown = surest_photographs(shots, found, 30.0, shots[0]["image"].shape[-1]).unflatten(0, (3, 12))
    expected = torch.full_like(shown, 255)
    for place, index in (((0, 0), 1), ((0, 3), 2), ((1, 3), 0)):
        expected[place] = as_uint8(shots[index]["image"])
    assert torch.equal(shown, expected) and (expected[0, 0] != 255).any()


def test_a_sheets_column_has_the_surest_photographs_of_its_azimuths():
    found = found_at(torch.tensor([1.0, 29.0, 31.0, 5.0, 9.0]), torch.zeros(5), torch.tensor([0.1, 0.9, 1.0, 0.5, 0.3]))
    assert surest(found, 0, 30.0) == [1, 3, 4]
    assert surest(found, 1, 30.0) == [2]
    assert surest(found, 5, 30.0) == []
