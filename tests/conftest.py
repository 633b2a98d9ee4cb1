"""How tests run, and what many of them share: configs at their smallest, cameras on the sphere, and a batch in memory."""

import gc
import os
import platform
import signal
import threading
from importlib.metadata import version
from types import SimpleNamespace

from graf.camera import Labels, sample_poses
from graf.config import CONFIG_DIR, load_config
from graf.metrics.extractors import EfficientNetLite0, EfficientNetLite2
from graf.runtime.files import encodable
from graf.runtime.interruption import SIGNALS
from graf.runtime.limits import GB, available_cores
from graf.runtime.precision import has_bfloat16
from graf.runtime.threads import warn_of_one_thread

import pynvml
import pytest
import torch
from tqdm import tqdm

EXTRACTOR_SIDES = {network: network.RESOLUTION for network in (EfficientNetLite0, EfficientNetLite2)}
UNREFINED = ("ccsr.mode=none", "ray_sampler.rays_per_patch=256")


def pytest_configure():
    """A test takes one thread, as do the programs that it starts: other tests run beside it. It does not wait for the
    disk. What `few_objects_to_collect` has frozen is not counted, which takes a tenth of a second in each program in a test."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    gc.get_freeze_count = lambda: 10**9
    os.fsync = os.fstat  # which knows a descriptor that is not open too; thousands of files take minutes on a slow disk


def pytest_sessionstart(session):
    """Print what the tests run on, so that a failure of one version or one kind of CPU is known as such.

    pytest's own header is hidden by -q.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # xdist's workers have none
        reporter.write_line(what_runs())


def what_runs() -> str:
    cpu = torch.backends.cpu.get_cpu_capability() + (" with bfloat16" if has_bfloat16(torch.device("cpu")) else "")
    versions = f"torch {torch.__version__}, torchvision {version('torchvision')}, Python {platform.python_version()}"
    return f"{versions}, {platform.system()}, {available_cores()} cores, {cpu}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process per core available (in a container, under taskset), at most 8, as each takes a gigabyte."""
    return min(available_cores(), 8)


def pytest_generate_tests(metafunc):
    """Refuse parameters from a set: their order differs between the processes that share the tests."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if any(isinstance(argument, (set, frozenset)) for argument in (*mark.args, *mark.kwargs.values())):
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: parametrize takes a list, a set has no order")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """What a test printed and logged, with escapes for names of files that are not UTF-8: xdist sends it to another process."""
    report = yield
    report.sections = [(name, encodable(text)) for name, text in report.sections]
    return report


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect():
    """Garbage collection looks at what a module's tests make only: beside all that was imported, and all that tests before have
    kept, each one would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def signals_end_the_tests():
    """Not only the program that a test has run in this process, which lets them end it by SystemExit."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def small_extractors(monkeypatch):
    """The networks of FID and KID see images at a quarter of their side: tests are of what is computed from features, seldom of
    features."""
    for network, side in EXTRACTOR_SIDES.items():
        monkeypatch.setattr(network, "RESOLUTION", side // 4)


@pytest.fixture
def whole_extractors(small_extractors, monkeypatch):
    """The networks of FID and KID see images at their own side."""
    for network, side in EXTRACTOR_SIDES.items():
        monkeypatch.setattr(network, "RESOLUTION", side)


@pytest.fixture
def two_threads():
    """Operations take two threads, as in a program on two cores."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def no_new_threads(monkeypatch):
    """The system starts no thread, as its stack finds no room."""
    warn_of_one_thread.cache_clear()
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # tqdm has a thread of its own
    try:
        before = threading.stack_size(2**47)  # bytes: all that a process can address
    except ValueError:
        pytest.skip("this system refuses the size by itself")
    yield
    threading.stack_size(before)


@pytest.fixture
def cards(monkeypatch):
    """Cards of the given names, of 8 GB each, behind PyTorch's own functions: what these hand to its C++ is noted by name."""

    def install(*names, capability=(8, 6), built_for="sm_75 sm_80 sm_90a compute_120"):
        calls, current = [], [0]

        def noted(name, do=lambda *_: None):
            return lambda *given: calls.append((name, *given)) or do(*given)

        def properties(index):
            return SimpleNamespace(name=names[index], total_memory=8 * GB, major=capability[0], minor=capability[1])

        for module in (torch.cuda, torch.cuda.memory):
            monkeypatch.setattr(module, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "_cached_device_count", None)
        monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: -1)  # which asks this machine's driver
        monkeypatch.setattr(torch.cuda, "_get_device_properties", properties, raising=False)
        monkeypatch.setattr(torch.cuda, "_cudart", SimpleNamespace(cudaMemGetInfo=lambda index: (6 * GB, 8 * GB)))
        inner = {
            "getDeviceCount": lambda: len(names),
            "getDevice": lambda: current[0],
            "getArchFlags": lambda: built_for,
            "setDevice": noted("setDevice", lambda index: current.__setitem__(0, index)),
            "setMemoryFraction": noted("setMemoryFraction"),
        }
        for name, function in inner.items():
            monkeypatch.setattr(torch._C, f"_cuda_{name}", function, raising=False)
        return calls

    return install


@pytest.fixture
def driver(monkeypatch):
    """NVIDIA's driver of the given version and CUDA (12020 for 12.2), whose cards a PyTorch for another CUDA cannot use."""

    def install(*names, version="535.54", cuda=12020, built_for="13.0", said="the driver is too old\nUpdate it"):
        def fail():
            raise RuntimeError(said)

        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: version,
            "nvmlSystemGetCudaDriverVersion": lambda: cuda,
            "nvmlDeviceGetCount": lambda: len(names),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda index: names[index],
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.version, "cuda", built_for)
        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_init", fail, raising=False)
        monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: len(names))
        for name, value in {"_initialized": False, "_cached_device_count": None, "_cudart": object()}.items():
            monkeypatch.setattr(torch.cuda, name, value)

    return install


@pytest.fixture
def smoke():
    """The smoke config, not refined, with `section.key=value` overrides: smoke("nerf.importance_samples_per_ray=4")."""
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", (*UNREFINED, *overrides))


@pytest.fixture
def refine():
    """The smoke config with overrides: 8 x 8 rays refined to 16 x 16 pixels, by a CCSR that the discriminator teaches."""
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", ("ccsr.learns_from=discriminator", *overrides))


@pytest.fixture
def concat():
    """GRAF's own field at the smoke config's size, with overrides."""
    recipe = ("nerf.conditioning=concat", "nerf.density_activation=relu", "nerf.use_viewdirs=true", "nerf.netdepth=6")
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", (*UNREFINED, *recipe, *overrides))


@pytest.fixture
def film():
    """The modulated field at the smoke config's size, with overrides."""
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", (*UNREFINED, "nerf.conditioning=film", *overrides))


@pytest.fixture
def labels(smoke):
    """Four cameras, of two classes and three elevations."""
    poses = sample_poses(4, smoke().data, torch.Generator().manual_seed(11))
    return Labels(poses, torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 2, 0]))


@pytest.fixture
def photographs():
    """Four noise images (4, 3, 16, 16) in [-1, 1]."""
    return torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(12)) * 2 - 1


@pytest.fixture
def cut_outs(photographs):
    """The photographs with noise for their opacity (4, 4, 16, 16)."""
    opacity = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(13)) * 2 - 1
    return torch.cat([photographs, opacity], dim=1)


@pytest.fixture
def few_objects():
    """What lives already is out of a census's sight, and of its time."""
    gc.freeze()
