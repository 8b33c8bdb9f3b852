"""Mistakes that no CPU shows, planted one at a time: the tests of every algorithm find each of them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from slm_lab.agent.action.distribution import Categorical
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.compile.capture import CapturedFunction
from slm_lab.agent.learn.optim import FlatOptimizer
from slm_lab.agent.learn.sweep import Sweep
from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.memory.replay import Replay
from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.memory.rollout import RolloutMemory
from slm_lab.env.normalize import ObsEncoder
from slm_lab.lib.errors import DivergenceError
from test.gpu.ledger import DeviceError
from test.gpu.test_device import test_compiled_under_the_rules_of_cuda_graphs as check_compiled
from test.gpu.test_device import test_same_numbers_and_known_waits as check_plain

Patch = pytest.MonkeyPatch


def before(patch: Patch, owner: type, name: str, mistake: Callable[..., Any]) -> None:
    """Do something more at every call of a method."""
    real = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        mistake(*args, **kwargs)
        return real(*args, **kwargs)

    patch.setattr(owner, name, call)


def take_by_host_index(patch: Patch) -> None:
    real = Ring.take
    patch.setattr(Ring, "take", lambda self, position, *names: real(self, position.cpu(), *names))


def draw_noise_on_host(patch: Patch) -> None:
    patch.setattr(Categorical, "noise", lambda self, num, *_: torch.ones(num, self.param_size).exponential_())


def draw_by_host_generator(patch: Patch) -> None:
    def noise(self: Categorical, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        return torch.ones(num, self.param_size, device=generator.device).exponential_(generator=torch.Generator())

    patch.setattr(Categorical, "noise", noise)


def read_as_numpy(patch: Patch) -> None:
    before(patch, RolloutMemory, "add", lambda self, step: step.action.numpy())


def forget_upload(patch: Patch) -> None:
    patch.setattr("slm_lab.agent.algorithm.ppo.upload", lambda tensor, device: tensor)


def reuse_pinned_memory(patch: Patch) -> None:
    buffers: dict[Any, Tensor] = {}

    def upload(tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.is_cuda:
            return tensor
        pinned = buffers.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor, pin_memory=True))
        return pinned.copy_(tensor).to(device, non_blocking=True)

    patch.setattr("slm_lab.agent.memory.ring.upload", upload)


def read_before_arrival(patch: Patch) -> None:
    patch.setattr(
        "slm_lab.agent.algorithm.ppo.download",
        lambda *tensors: tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors),
    )


def read_number_per_gradient_step(patch: Patch) -> None:
    before(patch, FlatOptimizer, "descend", lambda self: self.flat.grad.sum().item())


def upload_per_env_step(patch: Patch) -> None:
    before(patch, ObsEncoder, "__call__", lambda self, obs: torch.ones(3).to(self.device))


def index_by_mask(patch: Patch) -> None:
    before(patch, Ring, "take", lambda self, *_: self.fields["reward"][self.fields["terminated"]])


def read_number_in_loss(patch: Patch) -> None:
    before(patch, DQN, "calc_loss", lambda self, batch: float(batch.reward.sum()))


def give_graph_host_tensor(patch: Patch) -> None:
    def sample(self: Replay, frame: int) -> Batch:
        batch = real(self, frame)
        return batch._replace(weight=batch.weight.cpu())

    real = Replay.sample
    patch.setattr(Replay, "sample", sample)


def move_state(patch: Patch) -> None:
    def move(self: FlatOptimizer, frame: int) -> None:
        for name, tensor in self.tensors().items():
            if name != "data":
                tensor.data = tensor.data.clone()

    before(patch, FlatOptimizer, "set_frame", move)


def keep_graph_output(patch: Patch) -> None:
    patch.setattr("slm_lab.agent.compile.graph._copy_results", lambda compiled: compiled)


def forget_inputs_of_sweep(patch: Patch) -> None:
    def call(self: CapturedFunction, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.launch()
        return [result.clone() for result in self.results]

    patch.setattr(CapturedFunction, "__call__", call)


def read_number_in_sweep(patch: Patch) -> None:
    before(patch, Sweep, "_split", lambda self, orders: orders.sum().item())


MISTAKES: list[tuple[Callable[[Patch], None], Callable[[str], None], str, str]] = [
    (take_by_host_index, check_plain, "dqn", "same device"),
    (draw_noise_on_host, check_plain, "ppo", "same device"),
    (draw_by_host_generator, check_plain, "ppo", "expected a generator of cuda"),
    (read_as_numpy, check_plain, "ppo", "can't convert cuda:0"),
    (forget_upload, check_plain, "ppo", "same device"),
    (reuse_pinned_memory, check_plain, "dqn", "overwritten before the device had read it"),
    (read_before_arrival, check_plain, "ppo", "nan"),
    (read_number_per_gradient_step, check_plain, "dqn", "waits more"),
    (upload_per_env_step, check_plain, "ppo", "waits more"),
    (index_by_mask, check_plain, "dqn", "waits more"),
    (read_number_in_loss, check_compiled, "dqn", "fell back to plain calls"),
    (give_graph_host_tensor, check_compiled, "dqn", "same device"),
    (move_state, check_compiled, "dqn", "state of a graph has moved"),
    (keep_graph_output, check_compiled, "ppo", "comparison failed"),
    (forget_inputs_of_sweep, check_compiled, "ppo", "comparison failed"),
    (read_number_in_sweep, check_compiled, "ppo", "within a graph"),
]


@pytest.mark.parametrize(("plant", "check", "case", "message"), MISTAKES, ids=[row[0].__name__ for row in MISTAKES])
def test_a_planted_mistake_is_found(
    plant: Callable[[Patch], None],
    check: Callable[[str], None],
    case: str,
    message: str,
    monkeypatch: Patch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((DeviceError, TypeError, AssertionError, DivergenceError), match=message):
        check(case)
