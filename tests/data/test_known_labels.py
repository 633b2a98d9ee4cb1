"""What a data set tells of its images, and the discriminator's condition as it fits that."""

import dataclasses
import logging

from graf.camera import azimuth_and_v
from graf.config import load_config
from graf.data import build_dataset, build_loader, resolve
from graf.data.resolve import with_condition, without_encoder
from graf.data.views import KnownLabels, expected_labels
from graf.errors import ConfigError
from graf.training.state import TrainState
from graf.training.step import train_step

import pytest
import torch
from halves import discriminator_step
from test_data_images import config, put, put_transforms

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("files", "known"),
    [
        (("a.png", "b.png"), KnownLabels(False)),
        (("cats/a.png", "dogs/b.png"), KnownLabels(False, n_classes=2)),
        (("0_0000.png", "1_0090.png"), KnownLabels(True, n_elevations=4)),
        (("x/0_0000.png", "y/0_0090.png"), KnownLabels(True, n_classes=2, n_elevations=4)),
    ],
)
def test_names_alone_tell_what_the_images_do(tmp_path, files, known):
    for file in files:
        put(tmp_path / file)
    settings = config(tmp_path)
    assert expected_labels(settings.data) == build_dataset(settings).known_labels == known


def test_transforms_tell_cameras_and_no_elevations(tmp_path):
    put(tmp_path / "a.png")
    matrix = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 3.6], [0, 0, 0, 1]]
    put_transforms(tmp_path, [{"file_path": "a.png", "transform_matrix": matrix}])
    settings = config(tmp_path)
    assert expected_labels(settings.data) == build_dataset(settings).known_labels == KnownLabels(True)


def test_of_a_set_that_is_not_here_file_names_are_expected(tmp_path):
    assert expected_labels(config(tmp_path / "carla").data) == KnownLabels(True, n_elevations=4)


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        ((), KnownLabels(True, n_elevations=4)),
        (("data.v=[0.3,0.4]",), KnownLabels(True, n_elevations=2)),
        (("data.labels=filename", "data.vmin=0.3", "data.vmax=0.3"), KnownLabels(True)),
        (("data.labels=none",), KnownLabels(False)),
    ],
)
def test_toy_cars_have_as_many_elevation_bins_as_data_v_has_entries(tmp_path, keys, known):
    settings = load_config(None, [f"data.datadir={tmp_path}", "data.n_images=8", "data.imsize=8", *keys])
    assert expected_labels(settings.data) == build_dataset(settings).known_labels == known


def test_a_toy_cars_elevation_bin_is_its_quarter_of_the_range(tmp_path):
    keys = ["data.n_images=200", "data.imsize=8", "data.vmin=0.1", "data.vmax=0.5", f"data.datadir={tmp_path}"]
    labels = build_dataset(load_config(None, keys)).labels
    v = azimuth_and_v(labels.pose_c2w)[1]
    assert torch.equal(labels.elevation_index, ((v - 0.1) / 0.1).long())
    assert labels.elevation_index.unique().tolist() == [0, 1, 2, 3]
    assert labels.class_index.unique().tolist() == [0]


@pytest.mark.parametrize(
    ("condition", "known", "fitted"),
    [
        ("class_and_pose", KnownLabels(True), "class_and_pose"),
        ("class", KnownLabels(True), "class"),  # of checkpoints that have it
        ("class_and_pose", KnownLabels(False, n_classes=2), "class"),
        ("class", KnownLabels(False, n_classes=2), "class"),
        ("class_and_pose", KnownLabels(False), "none"),
        ("class", KnownLabels(False), "none"),
        ("none", KnownLabels(False, n_classes=2), "none"),
    ],
)
def test_the_condition_falls_to_what_the_data_knows_and_stays_there(smoke, caplog, condition, known, fitted):
    settings = smoke(f"discriminator.condition={condition}")
    with caplog.at_level(logging.INFO, logger="graf"):
        after = with_condition(settings, known)
    assert after == smoke(f"discriminator.condition={fitted}")
    told = [f"discriminator.condition: {fitted} instead of {condition}" in line for line in caplog.messages]
    assert told == [True] * (fitted != condition)
    assert with_condition(after, known) is after


def test_the_line_that_tells_it_says_how_cameras_are_told(smoke, caplog):
    with caplog.at_level(logging.INFO, logger="graf"):
        with_condition(smoke(), KnownLabels(False, n_classes=3))
    assert (
        "3 classes and no cameras, which names such as 0_0090.png (<elevation>_<azimuth>) or a transforms.json" in caplog.text
    )


def test_labels_without_anything_to_tell_apart_are_refused(smoke):
    settings = smoke("discriminator.label_loss=MCE")
    with pytest.raises(ConfigError, match="MCE has nothing to tell apart.*set it to none, or give each class a folder"):
        with_condition(settings, KnownLabels(False))
    assert with_condition(settings, KnownLabels(True, n_elevations=4)) is settings


def one_step(settings):
    """The state after a training step, and its scalars, as train.py would take it."""
    dataset = build_dataset(settings)
    settings = with_condition(settings, dataset.known_labels)
    state = TrainState(settings, CPU, len(dataset.class_names), dataset.n_elevations)
    images, labels = next(build_loader(dataset, settings, CPU))
    return state, train_step(state, dataset, images, labels), labels


def test_the_label_loss_learns_elevations_of_the_embedded_cars(smoke, tmp_path):
    cars = smoke("discriminator.label_loss=MCE", f"data.datadir={tmp_path}", "training.batch_size=8")
    state, stats, labels = one_step(cars)
    assert state.discriminator.elevation_head.out_features == 4
    assert stats["loss_label_d"] > 0.5  # nats of four bins, of one class none
    assert state.discriminator.elevation_head.weight.grad.abs().max() > 0


def test_of_unposed_class_folders_the_class_alone_conditions(smoke, tmp_path):
    for index in range(8):
        put(tmp_path / f"{index % 2}" / f"{index}.png", colour=(30 * index, 0, 0), size=(16, 16))
    folder = ("data.type=images", f"data.datadir={tmp_path}", "discriminator.label_loss=MCE", "training.batch_size=8")
    state, stats, labels = one_step(smoke(*folder))
    assert state.config.discriminator.condition == "class" and state.discriminator.pose_embedding is None
    assert labels.pose_c2w is None and sorted(labels.class_index.tolist()) == [0] * 4 + [1] * 4
    assert state.generator.class_embedding.num_embeddings == 2
    for network in (state.discriminator.class_embedding, state.discriminator.class_head):
        assert network.weight.grad.abs().max() > 0
    assert stats["loss_label_d"] > 0.3 and torch.isfinite(stats["loss_g"])


@pytest.mark.parametrize("ccsr", [(), ("ccsr.mode=consistency", "ccsr.judge=restored")])
def test_a_folder_of_plain_photographs_trains_without_further_keys(smoke, tmp_path, ccsr):
    for index in range(4):
        put(tmp_path / f"IMG_{index}.jpg", size=(20, 16))
    state, stats, labels = one_step(smoke("data.type=images", f"data.datadir={tmp_path}", *ccsr))
    assert state.discriminator.projection is None and torch.isfinite(stats["loss_d"])


def test_photographs_are_told_apart_by_their_own_class_and_not_by_that_of_a_fake(smoke, photographs, labels):
    """Real images are scored with the labels that came with them, though cameras are drawn."""
    settings = smoke("discriminator.condition=class")
    scored = []
    state = TrainState(settings, CPU, n_classes=2)
    state.discriminator.register_forward_pre_hook(lambda _, inputs: scored.append(inputs[1].class_index.tolist()))
    own = dataclasses.replace(labels, pose_c2w=None, class_index=torch.tensor([1, 0, 0, 1]))
    discriminator_step(state, photographs, own, labels)
    assert scored[0] == [1, 0, 0, 1, *labels.class_index.tolist()]


@pytest.mark.parametrize("setting", ["encoder.first_steps=5", "encoder.weight=2"])
def test_images_without_cameras_have_no_encoder(smoke, caplog, setting):
    caplog.set_level(logging.INFO, logger="graf")
    settings = smoke(setting)
    assert without_encoder(settings, posed=True) is settings and not caplog.messages
    assert not without_encoder(settings, posed=False).encodes_images
    assert caplog.messages == ["encoder.first_steps and encoder.weight: 0, because these images have no cameras"]
    assert without_encoder(smoke(), posed=False) == smoke()
    front = "data.camera_prior=front", "data.hflip=true"
    assert without_encoder(smoke(setting, "encoder.finds_cameras=true", *front), posed=False).encodes_images
    assert not without_encoder(smoke(setting, *front), posed=False).encodes_images


def test_no_encoder_reconstructs_backgrounds(smoke, caplog):
    caplog.set_level(logging.INFO, logger="graf")
    plane = smoke("data.background_model=plane", "encoder.weight=2")
    assert not without_encoder(plane, posed=True).encodes_images
    assert [message.split(",")[0] for message in caplog.messages] == ["encoder.first_steps and encoder.weight: 0"]
    assert "data.background_model: plane" in caplog.text and "cameras" not in caplog.text
    assert without_encoder(plane, posed=True, trained=plane) is plane  # a run that goes on keeps what it has
    assert not without_encoder(plane, posed=True, trained=plane.without_encoder()).encodes_images


@pytest.mark.parametrize(
    ("labels", "asked", "steps"), [("auto", "auto", 500), ("none", "auto", 1500), ("auto", "7", 7), ("none", "0", 0)]
)
def test_low_resolution_lasts_longer_where_no_encoder_comes_before(smoke, tmp_path, labels, asked, steps):
    settings = f"data.datadir={tmp_path}", "data.n_images=4", f"data.labels={labels}", "encoder.first_steps=2"
    config = smoke(*settings, f"discriminator.low_res_steps={asked}")
    config = resolve(config, build_dataset(config))
    assert config.discriminator.low_res_steps == config.low_res_steps == steps
    assert config.short_steps == steps + 2 * (labels == "auto")
