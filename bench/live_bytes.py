"""Counting what tensors hold, operation by operation: the same on any machine, and without the allocator's share."""

import contextlib
import weakref
from unittest import mock

from graf.camera import Labels
from graf.config import Config
from graf.models.projection import projection_operators
from graf.training.state import TrainState
from graf.training.steps import discriminator_step, generator_step
from plain_step import PlainGenerator

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations inside it make and that have not been freed: `live`, and their `peak`.

    Fake tensors count as others do; where their values are asked for, they are said to be finite.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten._local_scalar_dense.default and _is_fake(args[0]):
            return True if args[0].dtype == torch.bool else 1.0
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class ShapesOnly(FakeTensorMode):
    """Tensors without content that autocast, unlike those of the meta device, takes for the CPU's; copies stay in the mode."""

    def __deepcopy__(self, memo):
        return self


def counted_peak(config: Config, plain: bool = False, shapes_only: bool = True) -> int:
    """Most live bytes of tensors in a training step that is not the first, on the CPU.

    Where `shapes_only`, nothing is computed; `plain` takes the step with bench/plain_step.py.
    """
    stay = mock.patch.object(nn.Module, "to", lambda self, *_: self)  # fake parameters cannot be moved
    mode = ShapesOnly() if shapes_only else contextlib.nullcontext()
    projection_operators.cache_clear()
    with stay, torch.random.fork_rng(devices=[]), mode, LiveBytes() as counter:
        state = TrainState(config, torch.device("cpu"))
        if plain:
            state.generator = PlainGenerator(state.generator)
        batch, width = config.training.batch_size, config.data.imsize
        images = torch.zeros(batch, 3, width, width)
        labels = Labels.of_poses(torch.ones(batch, 3, 4))
        for network, optimizer in ((state.generator, state.optimizer_g), (state.discriminator, state.optimizer_d)):
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()  # so that it has its state, as after a first step
        counter.peak = counter.live
        discriminator_step(state, images, labels, labels)
        generator_step(state, labels)
    projection_operators.cache_clear()
    return counter.peak


def _is_fake(tensor: Tensor) -> bool:
    return getattr(tensor, "fake_mode", None) is not None
