"""CUDA graphs of a step's gradients: recorded once and replayed on new batches, so that the host launches nothing by itself.

A recording is good while all that its operations take besides the batch stays as it is: shapes, the values that depend on the
step, and the addresses of the weights, which optimizers change in place.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar

from graf.runtime.out_of_memory import first_line

import torch
from torch import Tensor, nn

log = logging.getLogger("graf")

T, AnyBatch = TypeVar("T"), TypeVar("AnyBatch")
Gradients = tuple[dict[str, Tensor], list[Tensor]]  # of `graf.training.learn.gradients`

EAGER_STEPS = 3  # of each kind before it is recorded: they choose cuDNN's kernels, and make what is kept
MOST_KINDS = 8  # of steps that are known; each network has one, and the discriminator one with its gradient penalty


@dataclass
class Recording:
    """A graph with the tensors that it reads and writes: the batch's, the network's gradients, and what `gradients` returns."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    of_network: dict[nn.Parameter, Tensor]
    found: Gradients

    def gradients(self, inputs: list[Tensor]) -> Gradients:
        """What is returned for a batch of these tensors; the network has its gradients."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        self.replay()
        for p, gradient in self.of_network.items():
            p.grad = gradient
        values, buffers = self.found
        return {name: value.clone() for name, value in values.items()}, buffers


class CudaRecorder:
    """Records work in CUDA graphs that share their memory, since none is replayed while another's result is needed."""

    def __init__(self):
        self._pool: tuple[int, int] | None = None

    def __call__(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """What repeats the work, and the result, in which each repetition leaves its numbers; nothing is computed yet."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # the loader's threads go on
            result = work()
        return graph.replay, result


class Graphs:
    """The recordings of a run's steps, one for each kind of step; none, where there is nothing that records."""

    def __init__(self, record: Callable[[Callable[[], T]], tuple[Callable[[], None], T]] | None = None):
        self._record = record  # as CudaRecorder does
        self.clear()

    def __bool__(self) -> bool:
        """Whether steps are recorded."""
        return self._record is not None

    def clear(self) -> None:
        """Forget all recordings, since tensors of the state are new ones."""
        self._kinds: OrderedDict[Hashable, int | Recording] = OrderedDict()  # how many were computed, and then how

    def give_up(self) -> bool:
        """Forget all recordings, since their memory is needed, and make no more. Returns whether there was one."""
        held = any(isinstance(known, Recording) for known in self._kinds.values())
        self._record = None if held else self._record
        self.clear()
        return held

    def gradients(
        self, take: Callable[[AnyBatch], Gradients], network: nn.Module, batch: AnyBatch, constants: tuple
    ) -> Gradients:
        """What take(batch) returns and leaves in the network's gradients; by a recording where enough steps of the same
        constants and shapes were computed. Where it cannot be recorded, it is computed as before, and the log says why."""
        if not self:
            return take(batch)
        inputs = tensors_of(batch)
        kind = network, constants, *((x.shape, x.dtype) for x in inputs)
        known = self._kinds.pop(kind, 0)
        if known == EAGER_STEPS:
            known = self._recorded(take, network, batch)
        self._kinds[kind] = known if isinstance(known, Recording) else min(known + 1, EAGER_STEPS)
        if len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)
        return known.gradients(inputs) if isinstance(known, Recording) else take(batch)

    def _recorded(self, take: Callable[[AnyBatch], Gradients], network: nn.Module, batch: AnyBatch) -> Recording | int:
        batch = each_tensor(batch, torch.clone)
        try:
            replay, found = self._record(lambda: take(batch))
        except Exception as error:
            self._record = None
            advice = "operations are launched one by one; training.cuda_graphs=none does so from the start"
            log.warning("a step cannot be recorded as a CUDA graph (%s): %s", first_line(error), advice)
            return EAGER_STEPS
        of_network = {p: p.grad for p in network.parameters() if p.grad is not None}
        return Recording(replay, tensors_of(batch), of_network, found)


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in tuples and dataclasses, in their order."""
    found: list[Tensor] = []
    each_tensor(value, lambda x: found.append(x) or x)
    return found


def each_tensor(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Tuples and dataclasses with what `change` makes of each tensor in them."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(each_tensor(part, change) for part in value)
    if is_dataclass(value):
        return type(value)(*(each_tensor(getattr(value, f.name), change) for f in fields(value)))
    return value
