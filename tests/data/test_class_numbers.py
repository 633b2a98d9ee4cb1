"""Classes keep the numbers that the networks learned them by, whatever becomes of the folders around them."""

import dataclasses
import shutil
from pathlib import Path

from graf.checkpoints.checkpoint import read_checkpoint, save_checkpoint
from graf.checkpoints.export import class_names, write_export
from graf.checkpoints.generator_loading import load_generator
from graf.commands.train import keep_classes
from graf.data import build_dataset, resolve
from graf.errors import CheckpointError, DataError
from graf.training.health import Derailed, roll_back
from graf.training.state import TrainState, initialise_from, load_checkpoint

import pytest
import torch
from command_line import call
from test_data_images import config, put

CPU = torch.device("cpu")
LEARNED = ["bus", "car", "van"]


def put_classes(folder, *names):
    for name in names:
        put(folder / name / "0_0000.png")
        put(folder / name / "0_0090.png")


def dataset_of(folder, **keys):
    return build_dataset(config(folder, **{"data.v": "[0.4]", **keys}))


def of_files(dataset):
    """The class that each image has, by the folder that it is in."""
    names = {
        Path(file).parent.name: dataset.class_names[number]
        for file, number in zip(dataset.files, dataset.class_index, strict=True)
    }
    if dataset.posed:
        assert torch.equal(dataset.labels.class_index, dataset.class_index)
    return names


@pytest.mark.parametrize("keys", [{}, {"data.labels": "none"}])
@pytest.mark.parametrize(
    ("folders", "renamed"),
    [
        (("bus", "car", "van"), {}),
        (("a_van", "bus", "car"), {"van": "a_van"}),
        (("car", "van"), {}),
        (("coach",), {"bus": "coach"}),
    ],
)
def test_a_folder_that_is_renamed_or_left_out_moves_no_other_class(tmp_path, folders, renamed, keys):
    put_classes(tmp_path, *folders)
    dataset = dataset_of(tmp_path, **keys)
    assert dataset.number_classes_as(LEARNED) == renamed
    assert dataset.class_names == [renamed.get(name, name) for name in LEARNED]
    assert of_files(dataset) == {name: name for name in folders}


def test_a_class_that_the_model_does_not_know_is_named(tmp_path):
    put_classes(tmp_path, "bus", "car", "lorry", "van")
    with pytest.raises(DataError, match=r"the model knows 3 classes \(bus, car, van\), and not lorry; leave"):
        dataset_of(tmp_path).number_classes_as(LEARNED)


def test_folders_of_one_name_are_told_apart_by_those_above(tmp_path):
    put_classes(tmp_path / "a", "bus", "car")
    put_classes(tmp_path / "b", "bus")
    dataset = build_dataset(config(tmp_path / "a", tmp_path / "b", **{"data.v": "[0.4]"}))
    assert dataset.class_names == ["a/bus", "car", "b/bus"]
    assert dataset.number_classes_as(["b/bus", "a/bus", "car"]) == {}
    assert dataset.class_index.tolist() == [1, 1, 2, 2, 0, 0]


def test_a_folder_that_is_the_last_of_its_name_is_known_by_those_above(tmp_path):
    put_classes(tmp_path / "vw", "images")
    dataset = dataset_of(tmp_path)
    assert dataset.class_names == ["images"]
    assert dataset.number_classes_as(["ford/images", "vw/images"]) == {}
    assert dataset.class_names == ["ford/images", "vw/images"] and dataset.class_index.tolist() == [1, 1]


def test_folders_of_one_name_keep_their_order_where_it_alone_is_known(tmp_path):
    """As in checkpoints of a version that named them so."""
    put_classes(tmp_path / "a", "images")
    put_classes(tmp_path / "b", "images")
    dataset = dataset_of(tmp_path)
    dataset.number_classes_as(["images", "images"])
    assert dataset.class_names == ["a/images", "b/images"] and dataset.class_index.tolist() == [0, 0, 1, 1]


def trained_on(folder, n_classes=None):
    settings = config(folder, **{"data.v": "[0.4]", "discriminator.condition": "class", "training.outdir": folder.parent})
    dataset = build_dataset(settings)
    settings = resolve(settings, dataset)
    state = TrainState(settings, CPU, n_classes or len(dataset.class_names), dataset.n_elevations)
    state.class_names = dataset.class_names
    return state, dataset


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a run on folders of three classes."""
    put_classes(tmp_path / "learned", *LEARNED)
    save_checkpoint(tmp_path / "model.pt", trained_on(tmp_path / "learned")[0].checkpoint())
    return tmp_path / "model.pt"


def test_a_run_goes_on_with_each_class_in_its_place(checkpoint, tmp_path, caplog):
    put_classes(tmp_path / "renamed", "a_van", "bus", "car")
    state, dataset = trained_on(tmp_path / "renamed")
    load_checkpoint(checkpoint, state)
    keep_classes(state, dataset, checkpoint)
    assert state.class_names == dataset.class_names == ["bus", "car", "a_van"]
    assert f"{checkpoint}: its class van is called a_van now" in caplog.text
    state.config.run_dir.mkdir(parents=True)
    shutil.copy(checkpoint, state.config.run_dir)
    state.data_fingerprint = dataset.fingerprint
    roll_back(state, Derailed("loss_d is nan"))
    assert state.class_names == ["bus", "car", "a_van"] and state.data_fingerprint == dataset.fingerprint


def test_a_run_from_the_weights_that_fit_takes_the_embeddings_by_name(checkpoint, tmp_path):
    put_classes(tmp_path / "renamed", "a_van", "bus", "car")
    state, dataset = trained_on(tmp_path / "renamed")
    initialise_from(checkpoint, state)
    keep_classes(state, dataset, checkpoint)
    assert state.class_names == dataset.class_names == ["bus", "car", "a_van"]
    assert of_files(dataset) == {name: name for name in ("a_van", "bus", "car")}
    put_classes(tmp_path / "fewer", "car", "van")
    fewer, dataset = trained_on(tmp_path / "fewer")
    initialise_from(checkpoint, fewer)
    keep_classes(fewer, dataset, checkpoint)
    assert fewer.class_names == ["car", "van"]


def test_train_and_eval_know_the_classes_by_name(tmp_path, caplog):
    """From the command line to the networks."""
    put_classes(tmp_path / "photos", *LEARNED)
    keys = ("data.type=images", "data.v=[0.4]", "data.alpha=ignore", "discriminator.condition=class", "training.nworkers=0")
    named = (f"training.outdir={tmp_path}", "expname=run", "training.fid_every=0", "metrics.extractor=efficientnet-lite0")
    arguments = ["--config", "smoke", "--device", "cpu", "--set", *keys, *named]
    call("train.py", *arguments, f"data.datadir={tmp_path / 'photos'}", "training.max_steps=1", cwd=tmp_path)
    (tmp_path / "photos" / "van").rename(tmp_path / "photos" / "a_van")
    said = call("train.py", *arguments, f"data.datadir={tmp_path / 'photos'}", "training.max_steps=2", cwd=tmp_path)
    assert "its class van is called a_van now" in said
    assert read_checkpoint(tmp_path / "run" / "model.pt")["state"]["class_names"] == ["bus", "car", "a_van"]
    (tmp_path / "photos" / "bus").rename(tmp_path / "photos" / "coach")
    measure = ("--metrics", "kid", "--set", "metrics.n_real=6", "metrics.n_fake=6")
    said = call("eval.py", "--run", "run", "--device", "cpu", *measure, cwd=tmp_path)
    assert "the model has no class coach: its class bus is compared with these images" in said


@pytest.mark.parametrize(
    ("folders", "now"),
    [(("car", "van"), "2 (car, van)"), (("car",), "1 (car)"), (("bus", "car", "lorry", "van"), "4 (bus, car, lorry, van)")],
)
def test_another_number_of_classes_is_told_by_their_names(checkpoint, tmp_path, folders, now):
    put_classes(tmp_path / "others", *folders)
    state, _ = trained_on(tmp_path / "others")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(checkpoint, state)
    assert f"learned 3 classes (bus, car, van), and data.datadir has {now}; give it the same ones" in str(caught.value)


def test_an_older_checkpoint_tells_how_many_classes_it_learned(checkpoint, tmp_path):
    content = read_checkpoint(checkpoint)
    del content["state"]["class_names"]
    torch.save(content, tmp_path / "older.pt")
    state, dataset = trained_on(tmp_path / "learned")
    load_checkpoint(tmp_path / "older.pt", state)
    keep_classes(state, dataset, tmp_path / "older.pt")
    assert state.class_names == LEARNED
    begun, _ = trained_on(tmp_path / "learned")
    initialise_from(tmp_path / "older.pt", begun)
    assert begun.class_names == LEARNED
    put_classes(tmp_path / "others", "car", "van")
    with pytest.raises(CheckpointError, match=r"learned 3 classes, and data.datadir has 2 \(car, van\)"):
        load_checkpoint(tmp_path / "older.pt", trained_on(tmp_path / "others")[0])


def test_without_classes_their_folders_may_be_others(tmp_path):
    put_classes(tmp_path / "learned", *LEARNED)
    put_classes(tmp_path / "others", "car", "van")

    def state_of(folder):
        state, dataset = trained_on(tmp_path / folder)
        discriminator = dataclasses.replace(state.config.discriminator, condition="none")
        state = TrainState(dataclasses.replace(state.config, discriminator=discriminator), CPU, len(dataset.class_names))
        state.class_names = dataset.class_names
        return state, dataset

    save_checkpoint(tmp_path / "model.pt", state_of("learned")[0].checkpoint())
    state, dataset = state_of("others")
    load_checkpoint(tmp_path / "model.pt", state)
    keep_classes(state, dataset, tmp_path / "model.pt")
    assert state.class_names == dataset.class_names == ["car", "van"]


def test_names_of_classes_go_with_the_generator(checkpoint, tmp_path):
    generator = load_generator(checkpoint)
    assert generator.class_names == class_names(read_checkpoint(checkpoint), 3) == tuple(LEARNED)
    assert class_names(read_checkpoint(checkpoint), 2) == ()  # other people's, of another number than their networks know
    exported = write_export(tmp_path / "cars.safetensors", generator, 0)
    assert load_generator(exported).class_names == tuple(LEARNED)
