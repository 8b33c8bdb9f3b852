"""What no code can beat: the matrix products of the updates and the steps of the envs, each alone, on the same core."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from bench.job import Job, Measured, answer_with, peak_mb
from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.agent.action.build import build_family
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import EnvFacts, build_settings
from slm_lab.env.vec_env import VecEnv
from slm_lab.spec.algorithm import ActorCriticSpec, OffPolicySpec, PPOSpec, SoftActorCriticSpec
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.net import ConvNetSpec, MLPNetSpec, NetSpec
from slm_lab.spec.schema import Spec

# forward, gradient of the weights, gradient of the input
Kind = Literal["forward", "weight", "input"]
Call = Callable[[], object]
# calls by each library, to see which is faster
NUM_TRIED = 50


@dataclass(frozen=True)
class Dense:
    """A fully connected layer."""

    size_in: int
    size_out: int


@dataclass(frozen=True)
class Conv:
    """A convolution of square images (C, side, side)."""

    channels_in: int
    channels_out: int
    kernel: int
    stride: int
    side: int

    @property
    def side_out(self) -> int:
        """Side of the images that come out."""
        return (self.side - self.kernel) // self.stride + 1


Layer = Dense | Conv


@dataclass(frozen=True)
class Product:
    """One product of a gradient step: a layer, at a batch size, in one direction."""

    layer: Layer
    batch: int
    kind: Kind

    @property
    def flops(self) -> int:
        """Multiplications and additions, the same in every direction."""
        layer = self.layer
        if isinstance(layer, Dense):
            return 2 * self.batch * layer.size_in * layer.size_out
        fan_in = layer.channels_in * layer.kernel**2
        return 2 * self.batch * layer.side_out**2 * layer.channels_out * fan_in


# --- which products a gradient step has


def calc_layers(net: NetSpec, obs_shape: tuple[int, ...], size_out: int) -> list[Layer]:
    """The layers of a net, from the observation to its output."""
    layers: list[Layer] = []
    if isinstance(net, MLPNetSpec):
        size, widths = math.prod(obs_shape), net.hid_layers
    elif isinstance(net, ConvNetSpec):
        channels, side = obs_shape[0], obs_shape[-1]
        for width, kernel, stride in net.conv_hid_layers:
            conv = Conv(channels, width, kernel, stride, side)
            layers.append(conv)
            channels, side = width, conv.side_out
        size, widths = channels * side**2, net.fc_hid_layers
    else:
        raise TypeError(f"no limit is known for a {net.type}")
    for width in (*widths, size_out):
        layers.append(Dense(size, width))
        size = width
    return layers


def forward(layers: list[Layer], batch: int) -> Iterator[Product]:
    """The products of a pass without gradient."""
    return (Product(layer, batch, "forward") for layer in layers)


def learn(layers: list[Layer], batch: int) -> Iterator[Product]:
    """The products of a pass that is learned from: observations need no gradient."""
    yield from forward(layers, batch)
    for index, layer in enumerate(layers):
        yield Product(layer, batch, "weight")
        if index:
            yield Product(layer, batch, "input")


def pass_through(layers: list[Layer], batch: int) -> Iterator[Product]:
    """The products of a net that only hands a gradient on to its input."""
    yield from forward(layers, batch)
    yield from (Product(layer, batch, "input") for layer in layers)


def calc_products(spec: Spec, facts: EnvFacts) -> tuple[list[Product], float]:
    """The products of one gradient step, and gradient steps per frame."""
    algorithm, net, num_envs = spec.agent.algorithm, spec.agent.net, spec.env.num_envs
    shape = facts.obs_space.shape
    size = build_family(facts.action_space, "default", algorithm.actions).param_size
    if isinstance(algorithm, (PPOSpec, ActorCriticSpec)):
        if isinstance(algorithm, PPOSpec):
            batch = algorithm.minibatch_size
            steps_per_frame = algorithm.training_epoch / batch
        else:
            batch = algorithm.training_frequency * num_envs
            steps_per_frame = 1 / batch
        actor_size = size // 2 if net.log_std_init is not None else size
        if net.shared:
            # one body with two heads is a net whose last layer has room for both
            return list(learn(calc_layers(net, shape, actor_size + 1), batch)), steps_per_frame
        nets = [calc_layers(net, shape, actor_size), calc_layers(net, shape, 1)]
        return [product for layers in nets for product in learn(layers, batch)], steps_per_frame
    assert isinstance(algorithm, OffPolicySpec)
    assert isinstance(spec.agent.memory, ReplaySpec)
    batch = spec.agent.memory.batch_size
    steps_per_frame = algorithm.calc_utd(num_envs)
    if not isinstance(algorithm, SoftActorCriticSpec):
        layers = calc_layers(net, shape, size)
        return [*forward(layers, batch), *learn(layers, batch)], steps_per_frame
    assert not build_family(facts.action_space, "default", algorithm.actions).is_discrete
    actor = calc_layers(net, shape, size)
    critic = calc_layers(net, (shape[0] + size // 2,), 1)
    products = [*forward(actor, batch), *learn(actor, batch)]
    for _ in range(2):
        # the target's view of successors, the critics' own step, and the actor's step through them
        products += [*forward(critic, batch), *learn(critic, batch), *pass_through(critic, batch)]
    return products, steps_per_frame


# --- how long they take


def build_call(product: Product) -> Call:
    """A product as one call on tensors of its own, by the faster of PyTorch's libraries."""
    layer, batch = product.layer, product.batch
    if isinstance(layer, Conv):
        return _build_conv(layer, batch, product.kind)
    x, weight = torch.randn(batch, layer.size_in), torch.randn(layer.size_out, layer.size_in)
    grad = torch.randn(batch, layer.size_out)
    left, right = {
        "forward": (x, weight.t()),
        "weight": (grad.t(), x),
        "input": (grad, weight),
    }[product.kind]
    out = left.new_empty(left.shape[0], right.shape[1])
    by_onednn = torch.ops.mkldnn._linear_pointwise
    calls: list[Call] = [
        lambda: torch.mm(left, right, out=out),
        lambda: by_onednn(left, right.t(), None, "none", [], ""),
    ]
    return min(calls, key=_time_call)


def _time_call(call: Call) -> float:
    """Seconds of a call, the least of a few."""
    spent = []
    for _ in range(NUM_TRIED):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return min(spent)


def _build_conv(layer: Conv, batch: int, kind: Kind) -> Call:
    # the faster order of the numbers on a CPU
    order = torch.channels_last
    x = torch.randn(batch, layer.channels_in, layer.side, layer.side).contiguous(memory_format=order)
    weight = torch.randn(layer.channels_out, layer.channels_in, layer.kernel, layer.kernel)
    weight = weight.contiguous(memory_format=order)
    stride = [layer.stride] * 2
    if kind == "forward":
        return lambda: torch.conv2d(x, weight, None, stride)
    grad = torch.randn_like(torch.conv2d(x, weight, None, stride))
    mask = [kind == "input", kind == "weight", False]
    return lambda: torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, [0, 0], [1, 1], False, [0, 0], 1, mask
    )


def time_step(calls: list[Call], seconds: float) -> tuple[float, int]:
    """Seconds per gradient step, and how many were timed."""
    for call in calls * 3:
        call()
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or count < 3:
        for call in calls:
            call()
        count += 1
    return spent / count, count


def time_env(env: VecEnv, seconds: float) -> tuple[float, int]:
    """Seconds per step of all envs with random actions in the policy's range, and how many were timed."""
    generator = torch.Generator().manual_seed(0)
    family = build_family(env.action_space, "default")
    actions = [family.random(env.num_envs, generator).numpy() for _ in range(64)]
    env.reset()
    for action in actions[:8]:
        env.step(action)
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or count < 3:
        env.step(actions[count % len(actions)])
        count += 1
    env.pop_finished()
    return spent / count, count


@torch.inference_mode()
def measure(job: Job) -> Measured:
    """Seconds of products and of env steps for the frames that took as long."""
    torch.set_num_threads(1)
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides)
    env = build_vec_env(build_settings(spec.env, (0,)), spec.env.num_workers)
    products, steps_per_frame = calc_products(spec, env.facts)
    start, cpu_start = time.perf_counter(), time.process_time()
    step_seconds, num_step = time_step([build_call(product) for product in products], job.seconds / 2)
    env_seconds, _ = time_env(env, job.seconds / 2)
    cpu_share = (time.process_time() - cpu_start) / (time.perf_counter() - start)
    env.close()
    frames = round(num_step / steps_per_frame)
    phases = {"update": step_seconds * steps_per_frame * frames, "env": env_seconds / spec.env.num_envs * frames}
    return Measured(
        frames=frames,
        seconds=sum(phases.values()),
        cpu_seconds=sum(phases.values()) * cpu_share,
        opt_steps=num_step,
        num_param=0,
        phases=phases,
        warm_seconds=0.0,
        peak_mb=peak_mb(),
    )


if __name__ == "__main__":
    answer_with(measure)
