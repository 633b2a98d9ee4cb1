import dataclasses
from types import SimpleNamespace

from graf.checkpoints.checkpoint import save_checkpoint
from graf.errors import GrafError
from graf.models import generator
from graf.runtime.limits import GB
from graf.training import graphs, inputs
from graf.training import state as state_module
from graf.training.graphs import EAGER_STEPS, MOST_KINDS, Graphs, Recording
from graf.training.inputs import sample_step
from graf.training.state import TrainState, load_checkpoint
from graf.training.statistics import Values
from graf.training.step import train_step
from pretended_gpu import GPU, MEMORY_BYTES, pretended_gpu
from step_rows import AnyViews

import pytest
import tape
import torch
from torch import nn

KEPT = "discriminator.low_res_steps=0", "discriminator.blur_steps=0"


@pytest.fixture(autouse=True)
def fixed_shapes(monkeypatch):
    """No shape depends on values, as on a GPU."""
    monkeypatch.setattr(generator, "is_asynchronous", lambda _: True)


def new_tape():
    return tape.record


def state_of(config, recorded):
    state = TrainState(config, torch.device("cpu"), n_classes=2, n_elevations=3)
    state.graphs = Graphs(new_tape if recorded else None)
    return state


def rows_of(state, images, labels, n):
    """The stats of n steps on images that are new in each; those of step 8 are not finite."""
    rows = []
    for _ in range(n):
        seen = images.roll(state.step, dims=2) * (torch.nan if state.step == 7 else 1)
        rows.append({name: float(value) for name, value in train_step(state, AnyViews(labels), seen, labels).items()})
        state.advance()
    return rows


def weights(state):
    return [p.detach().clone() for name in state.NETWORKS for p in getattr(state, name).parameters()]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6, nan_ok=True)


CASES = {
    "penalties now and then, a blur that ends, low-resolution steps first": (
        *("training.reg_every=2", "discriminator.blur_steps=10", "discriminator.low_res_steps=2"),
        *("ray_sampler.rays_per_patch=256",),
    ),
    "parts": ("training.micro_batch=2", *KEPT),
    "an encoder's first steps, and reconstructions after them": ("encoder.first_steps=6", "encoder.weight=5", *KEPT),
    "cameras that an encoder finds": (
        *("encoder.finds_cameras=true", "data.camera_prior=front", "data.hflip=true"),
        *("encoder.weight=5", *KEPT),
    ),
    "two critics, of which one begins after the low-resolution steps": (
        *("discriminator.architecture=mixed", "encoder.first_steps=4", "encoder.weight=5", "discriminator.low_res_steps=5"),
        *("ray_sampler.rays_per_patch=256", "discriminator.blur_steps=0", "discriminator.feature_size=64"),
    ),
    "float16": ("training.use_amp=true", "training.amp_dtype=float16", *KEPT),
}


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
def test_recorded_steps_are_the_eager_ones(film, photographs, labels, overrides):
    """With a step among them that is skipped, because its images are not finite."""
    eager, recorded = (state_of(film(*overrides), yes) for yes in (False, True))
    assert_same(rows_of(eager, photographs, labels, 20), rows_of(recorded, photographs, labels, 20))
    assert recorded.graphs.recorded >= 2
    for p, q in zip(weights(eager), weights(recorded), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "overrides",
    [("ccsr.mode=refine",), ("ccsr.mode=consistency", "ccsr.alpha_decay=0", "ray_sampler.rays_per_patch=256")],
    ids=["refine", "consistency"],
)
def test_recorded_steps_with_ccsr_are_the_eager_ones(refine, photographs, labels, overrides):
    eager, recorded = (state_of(refine(*KEPT, *overrides), yes) for yes in (False, True))
    assert_same(rows_of(eager, photographs, labels, 10), rows_of(recorded, photographs, labels, 10))
    assert recorded.graphs.recorded == 2


def test_a_weight_that_changes_in_each_step_is_never_recorded(film, photographs, labels):
    eager, recorded = (
        state_of(film(*KEPT, "ccsr.mode=consistency", "ccsr.alpha_decay=0.1", "training.anneal=r3gan"), yes)
        for yes in (False, True)
    )
    assert_same(rows_of(eager, photographs, labels, 10), rows_of(recorded, photographs, labels, 10))
    assert recorded.graphs.recorded == 0 and len(recorded.graphs._kinds) == 2 * MOST_KINDS


def test_steps_are_recorded_after_the_first_ones_of_their_kind(film, photographs, labels):
    state = state_of(film(*KEPT), True)
    rows_of(state, photographs, labels, EAGER_STEPS)
    assert state.graphs.recorded == 0
    rows_of(state, photographs, labels, 1)
    assert state.graphs.recorded == 2


def test_a_resumed_run_records_anew_and_goes_on_as_it_would_have(film, photographs, labels, tmp_path):
    straight, resumed = (state_of(film(*KEPT), True) for _ in range(2))
    rows_of(straight, photographs, labels, 6)
    save_checkpoint(tmp_path / "model.pt", straight.checkpoint())
    rows_of(resumed, photographs, labels, 5)
    load_checkpoint(tmp_path / "model.pt", resumed)
    assert resumed.graphs.recorded == 0
    assert_same(rows_of(straight, photographs, labels, 5), rows_of(resumed, photographs, labels, 5))


def fails_with(error):
    """A recorder's maker whose recordings fail."""

    def record(work):
        work()
        raise error

    return lambda: record


NOT_PERMITTED = RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("error", [NOT_PERMITTED, torch.OutOfMemoryError("no room")])
def test_a_step_that_cannot_be_recorded_is_computed_as_before_and_said_once(film, photographs, labels, caplog, error):
    eager, recorded = (state_of(film(*KEPT), yes) for yes in (False, True))
    recorded.graphs = Graphs(fails_with(error))
    assert_same(rows_of(eager, photographs, labels, 7), rows_of(recorded, photographs, labels, 7))
    assert caplog.text.count("steps are no longer recorded as CUDA graphs (one cannot be recorded: ") == 1
    assert str(error) in caplog.text and "training.cuda_graphs=none" in caplog.text


def test_out_of_memory_before_a_recording_gives_recordings_up_and_makes_no_step_smaller(film, photographs, labels, monkeypatch):
    eager, recorded = state_of(film(*KEPT), False), state_of(film(*KEPT), True)

    def no_room(batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphs, "in_own_memory", no_room)
    assert_same(rows_of(eager, photographs, labels, 10), rows_of(recorded, photographs, labels, 10))
    assert not recorded.graphs and recorded.sizes.images == eager.sizes.images


def test_the_cause_of_a_failed_recording_is_named(film, photographs, labels, caplog):
    """PyTorch raises another error where it ends such a recording."""
    state = state_of(film(*KEPT), True)

    def record(work):
        try:
            raise NOT_PERMITTED
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904

    state.graphs = Graphs(lambda: record)
    rows_of(state, photographs, labels, 4)
    assert str(NOT_PERMITTED) in caplog.text and "previous error" not in caplog.text


def test_a_recording_that_fails_takes_the_others_with_it(film, photographs, labels):
    state, calls = state_of(film(*KEPT), True), []

    def record(work):
        calls.append(work)
        if len(calls) == 2:
            raise NOT_PERMITTED
        return tape.record(work)

    state.graphs = Graphs(lambda: record)
    rows_of(state, photographs, labels, 4)
    assert len(calls) == 2 and state.graphs.recorded == 0 and not state.graphs


def test_an_allocator_that_a_failed_recording_leaves_unusable_ends_the_run_with_advice(film, photographs, labels, monkeypatch):
    state = state_of(film(*KEPT), True)
    state.graphs = Graphs(fails_with(NOT_PERMITTED))

    def assertion():
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(graphs, "clean_up", assertion)
    with pytest.raises(GrafError, match="captures_underway.*training.cuda_graphs=none"):
        rows_of(state, photographs, labels, 4)


def test_with_anomaly_detection_nothing_is_recorded(film, photographs, labels):
    state = state_of(film(*KEPT), True)
    with torch.autograd.set_detect_anomaly(True):
        rows_of(state, photographs, labels, 6)
    assert state.graphs.recorded == 0 and state.graphs


def test_each_set_of_recordings_has_a_recorder_of_its_own(film, photographs, labels):
    made = []
    state = state_of(film(*KEPT), True)
    state.graphs = Graphs(lambda: made.append(1) or tape.record)
    rows_of(state, photographs, labels, 5)
    state.load_state_dict(state.state_dict())
    assert len(made) == 2 and state.graphs.recorded == 0
    rows_of(state, photographs, labels, 5)
    assert state.graphs.recorded == 2


def test_a_rare_kind_of_steps_is_recorded_though_another_network_changes_its_own_in_each_step(film, photographs, labels):
    state = state_of(film(*KEPT, "training.reg_every=6", "ccsr.mode=consistency", "ccsr.alpha_decay=0.1"), True)
    rows_of(state, photographs, labels, 25)
    assert state.graphs.recorded == 2  # the discriminator's


def test_out_of_memory_takes_the_recordings_before_the_step_shrinks(film, photographs, labels, monkeypatch, caplog):
    eager, recorded = (state_of(film("training.reg_every=5", *KEPT), yes) for yes in (False, True))
    expected = rows_of(eager, photographs, labels, 6)
    found = rows_of(recorded, photographs, labels, 4)
    assert recorded.graphs.recorded == 2
    replayed, calls = Recording.replay_on, []

    def without_room(*args):
        calls.append(args)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return replayed(*args)

    monkeypatch.setattr(Recording, "replay_on", without_room)
    assert_same(expected, found + rows_of(recorded, photographs, labels, 2))
    assert len(calls) == 1 and recorded.graphs.recorded == 0 and "(out of memory)" in caplog.text  # and none is made again
    assert recorded.sizes.images == eager.sizes.images


@pytest.mark.parametrize(
    ("overrides", "records"),
    [((), True), (("training.cuda_graphs=none",), False), (("memory.budget_gb=0.6",), False)],
    ids=["room for two steps", "none", "room for one"],
)
def test_a_gpu_records_where_two_steps_fit(refine, monkeypatch, overrides, records):
    monkeypatch.setattr(state_module, "estimate_step", lambda *_: SimpleNamespace(total_bytes=GB // 2, process_bytes=0))
    with pretended_gpu():
        state = TrainState(refine(*overrides), GPU)
        spare = state.spare_bytes()
    assert bool(state.graphs) == records
    if not overrides:
        assert spare == (MEMORY_BYTES - 1.25 * GB) // 2


def test_a_cpu_records_nothing(film):
    assert not TrainState(film(), torch.device("cpu")).graphs


def test_out_of_memory_while_a_step_is_sampled_takes_the_recordings_too(film, photographs, labels, monkeypatch):
    state = state_of(film(*KEPT), True)
    rows_of(state, photographs, labels, 4)
    sample, calls = inputs.sample_inputs, []

    def without_room(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no room")
        return sample(*args, **kwargs)

    monkeypatch.setattr(inputs, "sample_inputs", without_room)
    images = state.sizes.images
    rows_of(state, photographs, labels, 1)
    assert state.graphs.recorded == 0 and state.sizes.images == images


def test_a_batch_holds_tensors_and_none_alone(refine, photographs, labels):
    """Anything else would be read once, when a step is recorded."""

    def leaves(value):
        if dataclasses.is_dataclass(value):
            return [leaf for field in dataclasses.fields(value) for leaf in leaves(getattr(value, field.name))]
        return [value]

    batches = sample_step(state_of(refine(), False), AnyViews(labels), photographs, labels)
    found = [leaf for batch in batches for leaf in leaves(batch)]
    assert len(found) > 10 and all(leaf is None or isinstance(leaf, torch.Tensor) for leaf in found)


def test_a_copied_batch_has_its_layout_and_none_of_its_memory():
    block = torch.arange(48, dtype=torch.uint8)
    batch = block[16:32].view(torch.float32), block[:16].view(2, 8).T, torch.rand(1, 3).expand(4, 3)
    own = graphs.in_own_memory(batch)
    (memory, layout), (copied, own_layout) = map(graphs.memory_and_layout, (batch, own))
    assert [len(x) for x in memory] == [len(x) for x in copied] == [48, 12]
    assert own_layout == layout
    block.add_(1)
    batch[2][:1].fill_(7)
    assert not any(torch.equal(x, y) for x, y in zip(own, batch, strict=True))
    for x, y in zip(copied, memory, strict=True):
        x.copy_(y)
    assert all(torch.equal(x, y) for x, y in zip(own, batch, strict=True))


def test_batches_of_the_same_shapes_and_another_layout_are_of_another_kind():
    layer, graph = nn.Linear(3, 1, bias=False), Graphs(new_tape)

    def compute(batch):
        layer.zero_grad(set_to_none=True)
        layer(batch[0]).sum().backward()
        return Values.of({"sum": batch[0].sum()}), None

    for i in range(EAGER_STEPS + 3):
        rows = torch.full((2, 3), float(i)), torch.full((3, 2), float(i)).T, torch.full((4, 3), float(i))[:2]
        for x in rows:
            graph.gradients(compute, layer, (x,), ())
            assert torch.equal(layer.weight.grad, torch.full((1, 3), 2.0 * i))
    assert graph.recorded == 3


def loss_of(layer):
    def compute(batch):
        layer.zero_grad(set_to_none=True)
        loss = layer(batch[0]).sum()
        loss.backward()
        return Values.of({"loss": loss.detach()}), None

    return compute


def test_the_kind_of_steps_that_was_taken_longest_ago_is_forgotten():
    layer, graph = nn.Linear(3, 1, bias=False), Graphs(new_tape)
    for rare in range(MOST_KINDS + 1):
        for kind in ("often", rare):
            graph.gradients(loss_of(layer), layer, (torch.ones(2, 3),), (kind,))
    assert MOST_KINDS + 1 > EAGER_STEPS and graph.recorded == 1


def test_results_of_a_recording_stay_when_it_is_replayed():
    layer, found = nn.Linear(3, 1, bias=False), []
    graph, compute = Graphs(new_tape), loss_of(layer)
    for i in range(EAGER_STEPS + 3):
        values, _ = graph.gradients(compute, layer, (torch.full((2, 3), float(i)),), ())
        found.append(values.by_name()["loss"])
        assert torch.equal(layer.weight.grad, torch.full((1, 3), 2.0 * i))
    assert [x.item() for x in found] == pytest.approx([2 * i * layer.weight.sum().item() for i in range(EAGER_STEPS + 3)])
