"""The benchmark's plain step is the package's in other words, its memory bars hold, and its tables compare like with like."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import benchmark
import loader_rows
import speed_rows
from graf.config import CONFIG_DIR, load_config
from graf.data import images, loader
from graf.errors import GrafError
from graf.models.generator import Generator
from graf.runtime.out_of_memory import OutOfMemory
from graf.training.graphs import EAGER_STEPS
from graf.training.state import TrainState
from memory_rows import compared, count_memory, expected_bytes, network, timed_steps, verdicts
from operations import LiveBytes
from plain_step import PlainGenerator

import pytest
import torch
from torch import nn


def test_the_plain_step_renders_the_same_pictures_with_the_same_gradients(concat, labels):
    torch.manual_seed(0)
    learned = Generator(concat("nerf.raw_noise_std=1"))
    latents, noise = torch.randn(4, 8), learned.sample_noise(4, 0, torch.Generator().manual_seed(1), 256)
    grid = torch.rand(4, 16, 16, 2, generator=torch.Generator().manual_seed(2)) * 15

    def gradients(generator):
        rendering = generator(latents, labels, grid, noise=noise)
        grads = torch.autograd.grad(rendering.images.square().mean(), list(learned.field.parameters()))
        return rendering.images.detach(), rendering.opacity.detach(), grads

    images, opacity, expected = gradients(learned)
    plain_images, plain_opacity, found = gradients(PlainGenerator(learned))
    assert images.std() > 0.01
    torch.testing.assert_close(plain_images, images, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain_opacity, opacity, atol=1e-5, rtol=0)
    for actual, wanted in zip(found, expected, strict=True):
        assert (actual - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_what_tensors_hold_is_what_the_layers_need():
    """Per sample the plain step keeps the inputs, eight layers, the joined skip, the colour layer's input and output; the
    package's the point, seven layers and what composites it, and a piece of the rays' gradients."""
    inputs, views, n_samples = 63 + 128, 27 + 128, 2 * 1024 * 64
    plain = 4 * n_samples * (inputs + 8 * 256 + (inputs + 256) + (256 + views) + 128)
    default = 4 * n_samples * (3 + 7 * 256)
    measured_plain, measured = (count_memory(name, 1024)["peak_bytes"] for name in ("plain", "default"))
    assert plain < measured_plain < 1.3 * plain
    assert default < measured < 1.2 * default
    assert measured < 0.6 * measured_plain


def row(name, rays, peak, seconds=None, number_format="bfloat16"):
    return {
        "name": name, "rays_per_image": rays, "number_format": number_format, "seconds_per_step": seconds, "peak_bytes": peak,
    }  # fmt: skip


def test_ratios_are_to_the_same_number_of_rays():
    rows = [row("plain", 1024, 100, 3.0), row("default", 1024, 60, 2.0), row("+ checkpoint_rays", 1024, 20, 2.5)]
    rows += [row("+ checkpoint_rays", 16384, 25, 40.0)]
    by_hand = [(1.0, 1.5, 1.0), (0.6, 1.0, 1.0), (0.2, 1.25, 1.0), (None, None, 1.25)]
    columns = ("peak_over_plain", "time_over_default", "peak_over_1024_rays")
    assert [tuple(found[name] for name in columns) for found in compared(rows)] == by_hand


def test_a_bar_is_met_missed_or_not_measured():
    rows = compared([row("plain", 4096, 100), row("default", 4096, 65), row("+ amp", 4096, 41)])
    said = [line.rsplit(": ", 1)[1] for line in verdicts(rows)]
    assert said == ["0.65, met", "0.41, MISSED", *["not measured"] * 4]


def test_the_bar_of_mixed_precision_is_not_for_float32():
    rows = compared([row("plain", 4096, 100), row("+ amp", 4096, 65, number_format="float32")])
    (said,) = (line for line in verdicts(rows) if line.startswith("+ amp"))
    assert said.endswith(": not measured")


def test_what_does_not_fit_is_foreseen_from_fewer_rays():
    rows = [row("plain", 1024, 100), row("plain", 4096, 300), row("safe", 1024, 50)]
    assert expected_bytes(rows, "plain", 16384) == 4 * 300
    assert expected_bytes(rows, "default", 16384) == 0
    assert expected_bytes(rows, "safe", 16384) == 0


def test_variants_differ_from_the_default_in_what_their_name_says():
    assert network(4096).ray_sampler.rays_per_patch == 4096
    assert network(4096, ("training.use_amp=true",)).training.use_amp
    assert network(16384).patch_size == 128


def test_the_counter_forgets_what_was_freed():
    with LiveBytes() as counter:
        for _ in range(3):
            torch.zeros(256)  # 1 KiB, gone at once
    assert (counter.live, counter.peak) == (0, 1024)


def test_refinement_is_compared_with_the_same_samples_unrefined(monkeypatch):
    def measured(row):
        seconds = {"refined, scale 2": 1.0, "refined, scale 4": 0.5, "not refined": 2.5}[row["name"]] * row["samples"]
        return row | {"seconds_per_step": seconds, "peak_bytes": 1}

    monkeypatch.setattr(benchmark, "in_own_process", measured)
    rows = benchmark.ccsr_rows(None)
    assert [row["times_as_fast"] for row in rows] == 2 * [2.5, 5.0, 1.0]


def test_a_row_of_ccsr_is_a_step_of_that_variant(monkeypatch):
    seen = []
    monkeypatch.setattr(benchmark.memory, "measure_steps", lambda config, *rest: seen.append((config, rest[0])) or {})
    args = benchmark.parser().parse_args(["ccsr", "--device", "cpu"])
    benchmark.measured_row(args, {"name": "not refined", "samples": 64})
    benchmark.measured_row(args, {"name": "refined, scale 2", "samples": 64})
    assert [(c.ccsr.mode, c.patch_size, c.nerf.samples_per_ray) for c, _ in seen] == [("none", 64, 64), ("refine", 64, 64)]
    assert all(c.training.use_amp and freed_memory_is_kept for c, freed_memory_is_kept in seen)


@pytest.fixture
def measured(monkeypatch):
    """Rows of the given seconds instead of processes; the list of turns that were taken."""
    turns = []

    def install(seconds, dtype="bfloat16"):
        def row(row):
            taken = seconds[row["name"]]
            turns.append(row["name"])
            taken = taken.pop(0) if isinstance(taken, list) else taken
            found = {"work": "step", "instructions": "all", "dtype": dtype if row["name"] == "amp" else "float32"}
            share = {"plain": 100, "float32": 66}.get(row["name"], 40)
            return row | found | {"seconds": taken, "cpu_seconds": 2 * taken, "peak_bytes": share, "flop_utilisation": 0.5}

        monkeypatch.setattr(benchmark, "in_own_process", row)
        monkeypatch.setattr(benchmark, "parts_table", lambda name: [{"name": "step", "of": name}])
        return turns

    return install


def speed_table(*flags):
    return benchmark.speed_rows(benchmark.parser().parse_args(["speed", *flags]))


@pytest.mark.parametrize(("seconds", "said"), [(1.04, "met"), (1.06, "MISSED")])
def test_mixed_precision_is_judged_by_the_medians_of_its_turns(measured, caplog, seconds, said):
    turns = measured({"float32": 1.0, "amp": [seconds - 0.3, seconds + 0.3], "system allocator": 2.0})
    with caplog.at_level("INFO", "graf"):
        speed_table("--config", "smoke")
    assert turns == 2 * ["float32", "system allocator", "amp"]
    assert caplog.text.count(f"at most 1.05: {said}") == 2


def test_a_step_is_judged_against_the_plain_one(measured, caplog):
    measured({"plain": [3.0, 5.0], "float32": 2.0, "amp": 1.0, "system allocator": 2.5})
    with caplog.at_level("INFO", "graf"):
        rows = speed_table()
    assert [row["speedup_over_plain"] for row in rows[:4]] == [1.0, 2.0, 1.6, 4.0]
    assert [row["of"] for row in rows[4:]] == ["float32", "amp"]
    assert [(rows[0][key]) for key in ("least", "seconds", "most")] == [3.0, 4.0, 5.0]
    for said in (
        "float32: 2.00 x plain; at least 1.6: met",
        "amp: 4.00 x plain; at least 4.5: MISSED",
        "0.66 of plain's memory; at most 0.65: MISSED",
    ):
        assert said in caplog.text


def test_a_processor_without_bfloat16_has_no_bar_for_it(measured, caplog):
    measured({"plain": 4.0, "float32": 2.0, "amp": 2.0, "system allocator": 2.5}, dtype="float32")
    with caplog.at_level("INFO", "graf"):
        speed_table()
    assert "at least 4.5" not in caplog.text


def test_the_parts_of_a_step_make_up_its_operations(smoke):
    config = smoke("nerf.conditioning=triplane", "nerf.plane_size=8", "nerf.synthesis_width=8", "nerf.plane_channels=4")
    rows = {row["name"]: row for row in speed_rows.part_rows(config, torch.device("cpu"), 1)}
    steps = timed_steps(TrainState(config, torch.device("cpu")))
    with speed_rows.Work() as work:
        next(steps)
    assert rows["step"]["flops"] == work.flops > 0
    n_samples, width = 2 * 4 * 256 * 8, 16  # of both networks' steps
    layers = 3 * 4 * width + width + width * width + 3 * width
    assert rows["field, forward"]["flops"] == 2 * n_samples * layers
    assert rows["step"]["seconds"] == pytest.approx(sum(row["seconds"] for name, row in rows.items() if name != "step"))


def test_a_part_takes_the_seconds_of_all_threads(monkeypatch):
    """Two threads whose calls overlap: four calls of a second, forward and backward."""
    meet = threading.Barrier(2, timeout=60)

    def one_second(call, device):
        call()
        meet.wait()
        return 1.0

    monkeypatch.setattr(speed_rows, "seconds_of", one_second)
    torch.set_num_threads(2)
    weight = torch.ones(3, 3, requires_grad=True)
    call = speed_rows.Call(torch.mm, (torch.ones(2, 3), weight), {}, True, [], autocast=False, in_thread=True)
    state = SimpleNamespace(device=torch.device("cpu"), amp=SimpleNamespace(autocast=lambda wanted: nullcontext()))
    try:
        costs = speed_rows.costs_of(4 * [call], state, 1)
    finally:
        torch.set_num_threads(1)
    assert {direction: cost["seconds"] for direction, cost in costs.items()} == {"forward": 2.0, "backward": 2.0}


def test_a_step_by_part_is_of_the_row_it_names_and_compared_with_the_rates(monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(speed_rows, "part_rows", lambda config, *_: seen.append(config.training.use_amp) or [step])
    about = {"work": "step", "instructions": "all", "dtype": "bfloat16", "product_rate": 4e9, "copy_rate": 1e9}
    step = about | {
        "name": "step",
        "flops": 2e9,
        "bytes": 1e9,
        "seconds": 2.0,
        "flop_utilisation": 0.25,
        "copy_utilisation": 0.5,
    }
    args = benchmark.parser().parse_args(["speed", "--config", "cars_128", "--device", "cpu"])
    monkeypatch.setattr(benchmark, "in_own_process", lambda row: benchmark.measured_row(args, row))
    with caplog.at_level("INFO", "graf"):
        assert [benchmark.parts_table(name) for name in ("float32", "amp")] == 2 * [[step]]
    assert seen == [False, True]
    assert "products take 0.500 s and bytes 1.000 s, together 0.75 of the step" in caplog.text


def test_ccsr_is_noted_with_the_weights_that_learn_in_it(refine):
    """Fakes without gradient, the field's fakes, whose gradient passes through it, and real images, which teach it."""
    state = TrainState(refine("ccsr.learns_from=photographs"), torch.device("cpu"))
    calls = speed_rows.calls_of_a_step(state)["CCSR"]
    learning = [any(p.requires_grad for p in call.args[0].parameters()) for call in calls]
    assert [(call.learns, found) for call, found in zip(calls, learning, strict=True)] == [
        (False, True),
        (True, False),
        (True, True),
    ]


@pytest.mark.parametrize(
    "overrides", [["training.reg_every=2"], ["discriminator.architecture=projected"], ["discriminator.architecture=mixed"]]
)
def test_the_penalty_is_noted_whatever_it_is_and_however_rare(refine, overrides):
    calls = speed_rows.calls_of_a_step(TrainState(refine(*overrides), torch.device("cpu")))
    assert len(calls["penalty"]) == 1 and calls["penalty"][0].learns


def test_a_straight_line_has_a_fixed_part_and_one_that_grows():
    assert speed_rows.straight_line([1, 2, 8], [5.0, 7.0, 19.0]) == pytest.approx((3.0, 2.0, 0.0))
    assert speed_rows.straight_line([1, 2, 4, 8], [1.0, 4.0, 16.0, 64.0])[2] > 0.1  # a parabola


def test_growth_is_judged_and_drawn(monkeypatch, caplog, tmp_path):
    slow = {("images", 16): 1.5}  # beside the line of 1 + value / 1000
    rows = [
        {"name": name, "value": value, "seconds": slow.get((name, value), 1 + value / 1000)}
        for name, (_, values) in benchmark.GROWN.items()
        for value in values
    ]
    monkeypatch.setattr(benchmark, "in_own_process", lambda row: rows)
    with caplog.at_level("INFO", "graf"):
        benchmark.growth_rows(benchmark.parser().parse_args(["growth", "--picture", str(tmp_path / "cost.png")]))
    assert "rays per image: within 0 %; at most 10 %: met" in caplog.text
    assert "samples per ray: within 0 %; at most 10 %: met" in caplog.text
    assert caplog.text.count("at most 10 %: MISSED") == 1
    assert (tmp_path / "cost.png").read_bytes()[1:4] == b"PNG"


def test_each_point_of_growth_is_a_step_of_its_config(smoke):
    builds = {"images": {n: smoke(f"training.batch_size={n}") for n in (1, 2)}}
    rows = speed_rows.growth_rows(builds, torch.device("cpu"), 1)
    assert [(row["name"], row["value"]) for row in rows] == [("images", 1), ("images", 2)]
    assert all(row["seconds"] > 0 and f"{row['value']} images" in row["work"] for row in rows)


@pytest.mark.parametrize("box", ["none", "[-0.9,-0.5,-0.4,0.9,0.5,0.4]"])
def test_plain_frames_are_those_of_the_package(refine, film, concat, labels, box):
    torch.manual_seed(0)
    overrides = f"data.box={box}", "nerf.render_samples_per_ray=12"
    for config in (
        refine("nerf.conditioning=film", *overrides),
        film("nerf.use_viewdirs=true", *overrides),
        concat(*overrides),
    ):
        learned = Generator(config).eval()
        nn.init.ones_(getattr(learned.field, "alpha_linear" if config.nerf.conditioning == "concat" else "density").bias)
        latents, pose_c2w = torch.randn(4, 8), labels.pose_c2w
        expected, found = learned.render(latents, pose_c2w, 32), PlainGenerator(learned).render(latents, pose_c2w, 32)
        assert PlainGenerator.knows(config.nerf) and expected.images.std() > 0.01
        torch.testing.assert_close(found.images, expected.images, atol=1e-5, rtol=0)


def test_fields_without_a_plain_one_are_known(smoke, concat):
    for config in (
        smoke("nerf.conditioning=triplane"),
        smoke("nerf.importance_samples_per_ray=4"),
        concat("nerf.use_viewdirs=false"),
    ):
        assert not PlainGenerator.knows(config.nerf)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.1, "10.0 x plain; at least 10: met"), (0.11, "9.1 x plain; at least 10: MISSED")]
)
def test_the_fast_way_is_judged_at_its_bar(measured, monkeypatch, caplog, film, seconds, said):
    turns = measured({"plain": 1.0, "exact": 0.5, "object": 0.5, "fast": seconds})
    monkeypatch.setattr(benchmark, "load_generator", lambda path: Generator(film()))
    args = benchmark.parser().parse_args(
        ["render", "--checkpoint", "cars.safetensors", "--pixels", "64", "128", "--rounds", "1"]
    )
    with caplog.at_level("INFO", "graf"):
        rows = benchmark.render_rows(args)
    assert len(rows) == 8 and turns == 2 * list(benchmark.FRAMES)
    assert [message for message in caplog.messages if message.startswith("fast: ")] == [f"fast: {said}"]


def test_a_triplane_is_rendered_without_a_plain_row(measured, monkeypatch, smoke):
    turns = measured({"exact": 0.5, "object": 0.5, "fast": 0.1})
    monkeypatch.setattr(benchmark, "load_generator", lambda path: Generator(smoke("nerf.conditioning=triplane")))
    args = benchmark.parser().parse_args(["render", "--checkpoint", "cars.safetensors", "--pixels", "128", "--rounds", "1"])
    benchmark.render_rows(args)
    assert turns == ["exact", "object", "fast"]


def test_each_way_to_render_is_timed_per_frame(film):
    generator = Generator(film("nerf.render_samples_per_ray=4")).eval()
    rows = [speed_rows.frame_row(generator, {"name": name, "pixels": 16}, 2) for name in benchmark.FRAMES]
    assert all(row["seconds"] > 0 and "16 x 16, one of 2" in row["work"] for row in rows)
    assert [row["dtype"] for row in rows[:2]] == ["float32", "float32"]


def test_an_untrained_generator_is_not_rendered():
    with pytest.raises(GrafError, match="--checkpoint FILE"):
        benchmark.render_rows(benchmark.parser().parse_args(["render"]))


def test_a_start_is_timed_until_the_command_ends():
    row = benchmark.start_row(benchmark.parser().parse_args(["start", "--device", "cpu"]), "train.py --help")
    assert 0 < row["seconds"] < 60
    assert row["cpu_seconds"] > 0


def test_a_copy_reads_and_writes_and_a_product_adds_and_multiplies():
    with speed_rows.Work() as work:
        torch.zeros(8, 4).T.contiguous() @ torch.zeros(8, 2)
    assert work.flops == 2 * 4 * 8 * 2
    assert work.n_bytes == 4 * (32 + 16 + 2 * 32 + 32 + 16 + 8)  # made, copied, and multiplied


def test_speed_is_judged_beside_one_busy_process(monkeypatch, caplog):
    speeds = {0: iter([8.0, 10.0]), 1: iter([4.0, 2.0])}  # by the number of busy processes
    monkeypatch.setattr(benchmark, "training_speed", lambda _, n_busy: next(speeds[n_busy]))
    with caplog.at_level("INFO", "graf"):
        rows = benchmark.busy_rows(benchmark.parser().parse_args(["busy"]))
    assert [row["name"] for row in rows] == 2 * ["alone", "beside a busy process"]
    assert "medians: 0.33 of the speed alone; at least 0.40: MISSED" in caplog.text  # 3 of 9


def test_a_training_that_ends_early_is_an_error(tmp_path):
    with benchmark.running(["-c", "raise SystemExit(2)"]) as training, pytest.raises(GrafError, match="status 2 before step 5"):
        benchmark.time_of_row(tmp_path / "metrics.jsonl", 5, training)


def test_a_step_hardly_waits_for_photographs_that_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(loader_rows, "PHOTOGRAPHS", 8)
    monkeypatch.setattr(loader_rows, "WIDTH", 80)
    monkeypatch.setattr(loader_rows, "HEIGHT", 60)
    loader_rows.put_photographs(tmp_path)
    monkeypatch.setattr(images, "read_image", lambda *args: pytest.fail("decoded once more"))
    for name in ("kept in memory", "kept in a file"):
        config = loader_rows.loader_config(CONFIG_DIR / "smoke.yaml", tmp_path, name)
        row = loader_rows.loader_row(config, tmp_path / "cache" / name, 1, torch.device("cpu"))
        assert 0 < row["share_of_step"] < 1 and "8 JPEGs of 80 x 60" in row["work"]
    assert len(list((tmp_path / "cache").rglob("*.pixels"))) == 1


def test_the_share_of_waiting_is_the_median_of_turns(monkeypatch):
    shares = iter([0.5, 0.1, 0.2, 0.7, 0.1, 0.3, 0.6, 0.4, 0.2])

    def measured(row):
        found = {"work": "wait", "dtype": "float32", "cpu_seconds": 1.0, "peak_bytes": None, "flop_utilisation": None}
        return row | found | {"seconds": 1.0, "share_of_step": next(shares), "images_per_second": 2.0}

    monkeypatch.setattr(benchmark, "in_own_process", measured)
    monkeypatch.setattr(loader_rows, "put_photographs", lambda folder: None)
    rows = benchmark.loader_rows(benchmark.parser().parse_args(["loader", "--rounds", "3"]))
    assert [row["share_of_step"] for row in rows] == [0.6, 0.1, 0.2]


def test_waiting_that_is_uneven_counts_whole(monkeypatch, tmp_path):
    """One of four steps of one second waits for three: three of seven seconds; the median waits for nothing."""
    now, waits = [0.0], iter([0.0] * loader_rows.WARM_UP_STEPS + [0.0, 0.0, 3.0, 0.0])

    class Batches:
        def __next__(self):
            now[0] += next(waits)
            return None, None

        def close(self):
            pass

    def train_step(*args):
        now[0] += 1.0

    monkeypatch.setattr(loader_rows, "PHOTOGRAPHS", 8)
    monkeypatch.setattr(loader_rows, "WIDTH", 80)
    monkeypatch.setattr(loader_rows, "HEIGHT", 60)
    loader_rows.put_photographs(tmp_path)
    monkeypatch.setattr(loader_rows, "build_loader", lambda *args: Batches())
    monkeypatch.setattr(loader_rows, "train_step", train_step)
    monkeypatch.setattr(loader_rows.time, "perf_counter", lambda: now[0])
    config = loader_rows.loader_config(CONFIG_DIR / "smoke.yaml", tmp_path, "kept in memory")
    row = loader_rows.loader_row(config, tmp_path / "cache", 4, torch.device("cpu"))
    assert (row["seconds"], row["share_of_step"]) == (0.0, 3 / 7)
    assert row["images_per_second"] == config.training.batch_size * 4 / 7


def test_no_more_loader_processes_than_cores_are_told(monkeypatch):
    monkeypatch.setattr(loader, "available_cores", lambda: 1)
    assert loader.loader_processes(load_config(None, ["training.nworkers=2"])) == 1
    assert loader.loader_processes(load_config(None, ["training.nworkers=0"])) == 0


def test_batches_are_compared_with_float32_of_the_same_batch(monkeypatch, caplog):
    def row(asked):
        speed = (
            None
            if asked == {"times": 16, "name": "mixed precision"}
            else 10.0 * (1 + list(benchmark.WAYS).index(asked["name"]))
        )
        on_gpu = {"launches": 2, "busy_share": 0.5} if asked["times"] == 4 else {"launches": None, "busy_share": None}
        on_gpu |= {"recorded": asked["times"] == 4 and benchmark.LAUNCHED not in benchmark.WAYS[asked["name"]]}
        return (
            asked | {"batch": 8 * asked["times"], "number_format": "x", "images_per_second": speed, "peak_bytes": 3e6} | on_gpu
        )

    monkeypatch.setattr(benchmark, "in_own_process", row)
    with caplog.at_level("INFO", "graf"):
        rows = benchmark.batch_rows(benchmark.parser().parse_args(["batches"]))
    assert [row["batch"] for row in rows] == [8] * 6 + [32] * 6 + [128] * 6
    assert [row.get("times_float32") for row in rows] == [1, 2, 3, 4, 5, 6] * 2 + [1, None, 3, 4, 5, 6]
    assert "| 128 | mixed precision | | out of memory |" in caplog.text and "| 2 | 0.50 |" in caplog.text
    assert caplog.text.count("| + CUDA graphs (not recorded) |") == 2 and "| 32 | + CUDA graphs |" in caplog.text


def test_a_row_of_a_batch_is_a_step_of_that_batch_at_once(monkeypatch):
    seen = []
    monkeypatch.setattr(benchmark.speed, "throughput", lambda config, *_: seen.append(config) or {"images_per_second": 8})
    args = benchmark.parser().parse_args(["batches", "--device", "cpu", "--config", "smoke"])
    row = benchmark.measured_row(args, {"times": 4, "name": "float32"})
    assert (seen[0].training.batch_size, seen[0].images_at_once, row["batch"]) == (16, 16, 16)
    assert row["images_per_second"] == 8 and seen[0].training.cuda_graphs == "none"


def test_a_batch_that_does_not_fit_is_a_row_without_a_speed(monkeypatch):
    def runs_out(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(benchmark.speed, "throughput", runs_out)
    args = benchmark.parser().parse_args(["batches", "--device", "cpu", "--config", "smoke"])
    assert benchmark.measured_row(args, {"times": 4, "name": "float32"})["images_per_second"] is None


def test_throughput_is_that_of_steps_after_the_first_ones(monkeypatch):
    """On a clock that a step moves on by a second, and the first ones by an hour."""
    now, taken = [0.0], []

    def steps(state, waits):
        assert not waits
        while True:
            now[0] += 3600.0 if len(taken) < EAGER_STEPS + 2 else 1.0
            taken.append(now[0])
            yield now[0], {}

    monkeypatch.setattr(speed_rows, "timed_steps", steps)
    monkeypatch.setattr(speed_rows.time, "perf_counter", lambda: now[0])
    config = load_config(CONFIG_DIR / "smoke.yaml")
    row = speed_rows.throughput(config, torch.device("cpu"), 5)
    assert row["images_per_second"] == config.training.batch_size and row["launches"] is None


def test_throughput_of_a_batch_that_had_to_be_divided_is_none(monkeypatch):
    def steps(state, waits):
        while True:
            state.sizes.shrink()
            yield 0.0, {}

    monkeypatch.setattr(speed_rows, "timed_steps", steps)
    with pytest.raises(OutOfMemory, match="1 image at a time"):
        speed_rows.throughput(load_config(CONFIG_DIR / "smoke.yaml", ["training.batch_size=64"]), torch.device("cpu"), 1)


def test_launches_are_counted_by_cudas_own_names():
    assert "cudaLaunchKernelExC".startswith(speed_rows.LAUNCHES) and not "cudaStreamSynchronize".startswith(speed_rows.LAUNCHES)
