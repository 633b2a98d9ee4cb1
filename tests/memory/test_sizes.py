"""Parts of a step: they cover the batch, shrink to a chunk of one image, grow once, and survive a checkpoint."""

from types import SimpleNamespace

from graf.config import load_config, override
from graf.memory.planner import estimate_step
from graf.memory.sizes import (
    GOOD_STEPS,
    StepSizes,
    edits_that_fit,
    little_memory,
    smallest_of_all,
    starting_sizes,
    with_advice,
    with_sizes,
)
from graf.pieces import SMALLEST_CHUNK
from graf.runtime.limits import GB
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.processes import ALONE

import pytest
import torch


@pytest.mark.parametrize(("images", "n"), [(3, 8), (8, 8), (1, 5), (16, 4)])
def test_parts_cover_the_batch_once(images, n):
    rows = [row for part in StepSizes(images, 0, 1024).parts(n) for row in range(n)[part]]
    assert rows == list(range(n))


@pytest.mark.parametrize(
    ("images", "n", "told"),
    [(4, 16, "batch 16 in 4 parts of 4"), (4, 10, "batch 10 in 3 parts of up to 4"), (8, 8, "batch 8 in one part")],
)
def test_how_a_batch_is_taken_is_told(images, n, told):
    assert StepSizes(images, 0, 1024).of_batch(n) == told


@pytest.mark.parametrize(("rays", "n", "kept"), [(0, 2, 0), (1000, 8, 1000), (1000, 2, 250), (1000, 3, 375), (1, 1, 1)])
def test_threads_share_the_rays_that_are_kept(rays, n, kept):
    assert StepSizes(8, rays, 1024).rays_of(n) == kept


def test_images_are_halved_first_then_rays_until_one_chunk_is_left():
    sizes = StepSizes(6, 0, 1024)
    seen = []
    while sizes.shrink():
        seen.append((sizes.images, sizes.rays))
    assert seen == [(3, 0), (2, 0), (1, 0), (1, 512), (1, 256), (1, 128)]
    assert sizes.rays // 2 < SMALLEST_CHUNK
    odd = StepSizes(5, 0, 1024)
    assert odd.shrink() and odd.images == 3  # two parts as before, not three


def test_after_enough_good_steps_they_grow_once():
    sizes = StepSizes(8, 0, 1024)
    assert not any(sizes.step_done() for _ in range(2 * GOOD_STEPS))  # nothing to grow back to
    sizes.shrink()
    assert [sizes.step_done() for _ in range(GOOD_STEPS)] == [False] * (GOOD_STEPS - 1) + [True]
    assert (sizes.images, sizes.rays) == (8, 0)
    sizes.shrink()
    assert not any(sizes.step_done() for _ in range(2 * GOOD_STEPS))
    assert sizes.images == 4


def test_a_failure_starts_the_count_anew():
    sizes = StepSizes(8, 0, 1024)
    sizes.shrink()
    for _ in range(GOOD_STEPS - 1):
        sizes.step_done()
    sizes.shrink()
    assert not sizes.step_done()


def test_what_was_forced_is_restored_and_what_was_chosen_is_not():
    forced, chosen = StepSizes(8, 0, 1024), StepSizes(2, 256, 1024)
    forced.shrink()
    forced.step_done()  # counts towards growing again
    again = StepSizes(8, 0, 1024)
    again.load_state_dict(forced.state_dict())
    assert again == forced
    again = StepSizes(8, 0, 1024)
    again.load_state_dict(chosen.state_dict())
    assert (again.images, again.rays) == (8, 0)
    smaller = StepSizes(2, 0, 1024)  # the config has less than the 4 that were forced
    smaller.load_state_dict(forced.state_dict())
    assert smaller.images == 2
    other_patch = StepSizes(8, 0, 256)
    other_patch.load_state_dict(forced.state_dict())
    assert other_patch.images == 8


def test_what_has_grown_once_is_restored_and_grows_no_more():
    forced = StepSizes(8, 0, 1024)
    forced.shrink()
    forced.shrink()
    while not forced.step_done():
        pass
    again = StepSizes(8, 0, 1024)
    again.load_state_dict(forced.state_dict())
    assert again == forced and (again.images, again.smaller_than) == (4, None)
    assert not any(again.step_done() for _ in range(2 * GOOD_STEPS))


def test_a_run_that_goes_on_with_other_plans_starts_anew():
    """On a machine with more memory, or with other keys."""
    forced = StepSizes(8, 0, 1024, planned=(8, 0))
    forced.shrink()
    same, larger, asked = (StepSizes(n, 0, 1024, planned=(n, 0)) for n in (8, 16, 4))
    for sizes in (same, larger, asked):
        sizes.load_state_dict(forced.state_dict())
    assert [sizes.images for sizes in (same, larger, asked)] == [4, 16, 4]
    assert same.smaller_than == (8, 0) and larger.smaller_than is None


@pytest.mark.parametrize("rays", [0, 32])
def test_the_sizes_that_a_run_starts_with_are_its_plan(rays):
    assert smallest_of_all(StepSizes(4, rays, 64), ALONE) == StepSizes(4, rays, 64, planned=(4, rays))


def test_a_process_plans_its_share_of_the_batch_and_holds_its_share_of_the_images():
    config = load_config(None, ["training.batch_size=30", "data.imsize=256", "ray_sampler.random_scale=true"])
    assert starting_sizes(config, "cpu", budget_bytes=0, n_processes=3).images == 10
    whole, share = (estimate_step(config, "cpu", n_processes=n).parts for n in (1, 3))
    gone = 20 * config.data.channels * 256**2 * 4  # bytes of the others' real images
    assert whole["images"] - share["images"] == gone and whole["noise of rays"] == share["noise of rays"]
    fits = estimate_step(with_sizes(config, StepSizes(10, 0, 1024)), "cpu", n_processes=3).total_bytes
    assert starting_sizes(config, "cpu", fits, n_processes=3).images == 10
    assert starting_sizes(config, "cpu", fits, n_classes=10**6, n_processes=3).images < 10  # whose embedding is held, too
    on_gpu = [estimate_step(config, "cuda", n_processes=n).parts["noise of rays"] for n in (1, 3)]
    assert on_gpu[0] == 3 * on_gpu[1]


def test_a_plan_that_did_not_hold_is_answered_with_settings_that_take_less():
    config = load_config()
    sizes = starting_sizes(config, "cpu", budget_bytes=0)
    (edit, *_) = str(with_advice(OutOfMemory("step 1"), config, sizes, torch.device("cpu"))).partition("--set ")[2].split()
    assert "=" in edit


def test_where_no_setting_fits_smaller_images_are_advised(smoke):
    config = smoke("memory.budget_gb=0.1")
    sizes = starting_sizes(config, "cpu", budget_bytes=0)
    told = str(with_advice(OutOfMemory("step 1"), config, sizes, torch.device("cpu")))
    assert "no setting fits into 0.1 GB; take a smaller data.imsize or another device" in told and "--set" not in told


def test_on_a_gpu_the_cached_images_are_named_beside_the_settings_that_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * GB, 8 * GB))
    config = load_config()
    sizes = starting_sizes(config, "cuda", budget_bytes=0)
    told = str(with_advice(OutOfMemory("step 1"), config, sizes, torch.device("cuda")))
    assert "step 1; by the plan a step fits into 8.5 GB" in told and "data.cache_device=none frees" in told


@pytest.mark.parametrize(("free_gb", "told"), [(64, False), (0.099, True)])
def test_a_step_that_takes_more_than_is_free_is_told(monkeypatch, free_gb, told):
    monkeypatch.setattr("graf.memory.sizes.memory_available", lambda: int(free_gb * GB))
    monkeypatch.setattr(
        "graf.memory.sizes.psutil.Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=GB // 4))
    )
    config = load_config()
    message = little_memory(estimate_step(config, "cpu"))
    assert bool(message) == told
    assert not told or "0.3 GB are free" in message and "memory.budget_gb=0.3" in message
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # of which each has a part of what is free, and a part of the budget
    message = little_memory(estimate_step(config, "cpu"))
    assert not told or "memory.budget_gb=0.5" in message


def test_more_rays_than_an_image_has_are_halved_from_those_that_it_has():
    sizes = StepSizes(1, 4096, 1024)
    assert sizes.shrink() and sizes.rays == 512


def test_rays_that_were_planned_are_no_more_after_a_resume():
    forced = StepSizes(1, 1024, 1024)
    forced.shrink()
    planned = StepSizes(1, 256, 1024)
    planned.load_state_dict(forced.state_dict())
    assert planned.rays == 256
    all_held = StepSizes(1, 0, 1024)
    all_held.load_state_dict(forced.state_dict())
    assert all_held.rays == 512


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), (8, 0)),
        (("training.accumulation_steps=4",), (2, 0)),
        (("training.accumulation_steps=3",), (3, 0)),
        (("training.micro_batch=5",), (5, 0)),
        (("nerf.checkpoint_rays=2048",), (8, 2048)),
    ],
)
def test_without_a_limit_the_config_decides(overrides, expected):
    sizes = starting_sizes(load_config(None, overrides), "cpu", budget_bytes=0)
    assert (sizes.images, sizes.rays) == expected


@pytest.mark.parametrize(("steps", "rays"), [(0, 8 * 8), (1, 16 * 16)])
def test_steps_that_are_not_refined_have_a_ray_per_pixel(refine, steps, rays):
    assert starting_sizes(refine(f"ccsr.unrefined_steps={steps}"), "cpu", budget_bytes=0).n_rays == rays


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_under_a_budget_the_largest_sizes_that_fit_are_taken(share):
    config = load_config(None, ["nerf.netwidth=256", "nerf.netdepth=8", "training.batch_size=16"])
    needed = estimate_step(config)
    budget = needed.process_bytes + int(share * (needed.total_bytes - needed.process_bytes))
    sizes = starting_sizes(config, "cpu", budget)
    assert estimate_step(with_sizes(config, sizes)).total_bytes <= budget
    assert sizes.images < 16
    larger = StepSizes(min(16, 2 * sizes.images), 0, sizes.n_rays)
    assert estimate_step(with_sizes(config, larger)).total_bytes > budget
    assert not any(sizes.step_done() for _ in range(2 * GOOD_STEPS))  # planned, so nothing to grow back to


def test_what_the_config_fixes_is_not_planned():
    config = load_config(None, ["training.micro_batch=8", "nerf.checkpoint_rays=0"])
    sizes = starting_sizes(config, "cpu", budget_bytes=1)
    assert (sizes.images, sizes.rays) == (8, 0)


def test_rays_are_chunked_where_one_image_does_not_fit():
    config = load_config(None, ["nerf.netwidth=256", "nerf.netdepth=8"])
    sizes = starting_sizes(config, "cpu", budget_bytes=1)
    assert (sizes.images, sizes.rays) == (1, 128)


def test_rays_are_chunked_where_the_images_at_a_time_are_fixed():
    config = load_config(None, ["nerf.netwidth=256", "nerf.netdepth=8", "training.micro_batch=2"])
    unlimited, smallest = (estimate_step(with_sizes(config, StepSizes(2, rays, 256))) for rays in (0, 128))
    budget = (unlimited.total_bytes + smallest.total_bytes) // 2
    sizes = starting_sizes(config, "cpu", budget)
    assert sizes.images == 2 and 0 < sizes.rays < 2 * sizes.n_rays
    assert estimate_step(with_sizes(config, sizes)).total_bytes <= budget
    assert starting_sizes(override(config, ["nerf.checkpoint_rays=0"]), "cpu", budget).rays == 0


def test_edits_that_fit_are_read_beside_the_configs_own_way_to_split_a_batch():
    config = load_config(overrides=("training.accumulation_steps=2", "training.use_amp=true"))
    sizes = StepSizes(8, 0, 1024)
    budget = estimate_step(with_sizes(config, sizes), "cuda").total_bytes - 1
    edits = edits_that_fit(config, sizes, budget, "cuda")
    assert edits == ("training.micro_batch=4", "training.accumulation_steps=1")
    assert override(config, edits).images_at_once == 4
