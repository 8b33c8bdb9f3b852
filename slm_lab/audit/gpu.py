"""What a GPU must show before it gets long runs: the numbers of the CPU, exact repeats, few waits, and its speed."""

import copy
import importlib.util
import math
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.algorithm.base import Metrics
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.learn.gradient import GradientStep, Loss
from slm_lab.experiment.build import TRAIN_ENV, build_env, build_session_agent
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.lib.errors import LabError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

CPU = torch.device("cpu")
# relative differences of losses, and of what a step adds to the weights, to those of the CPU
MAX_LOSS_ERROR, MAX_STEP_ERROR = 1e-3, 1e-2
# metrics smaller than this are compared by their difference alone
MIN_METRIC = 0.1
# waits of the host for the GPU, of one env step and of one compiled update
MAX_STEP_WAIT, MAX_UPDATE_WAIT = 2, 4
# updates before anything is measured: the first ones compile and capture
NUM_WARM, NUM_UPDATE = 4, 4
SPEED_SECONDS = 4.0

Raw = dict[str, Any]
# algorithm, memory, net, env
Case = tuple[Raw, Raw, Raw, Raw]
# eps: a gradient of rounding errors alone must not become a step of full length
OPTIM: Raw = {"optim_spec": {"name": "Adam", "lr": 1e-3, "eps": 1e-4}}
MLP: Raw = {"type": "MLPNet", "hid_layers": [64, 64], "hid_layers_activation": "tanh", **OPTIM}
WIDE: Raw = {**MLP, "hid_layers": [256, 256], "hid_layers_activation": "relu"}
CONV: Raw = {"type": "ConvNet", "conv_hid_layers": [[16, 3, 2]], "fc_hid_layers": [64], "normalize": True, **OPTIM}
GRU: Raw = {"type": "RecurrentNet", "fc_hid_layers": [32], "rnn_hidden_size": 32, "seq_len": 8, **OPTIM}
HORIZON: Raw = {"name": "PPO", "time_horizon": 32, "minibatch_size": 64, "training_epoch": 4}
REPLAY: Raw = {"name": "Replay", "batch_size": 128, "max_size": 10_000}
PRIORITIZED: Raw = {**REPLAY, "name": "PrioritizedReplay", "num_step_returns": 3}
CARTPOLE: Raw = {"name": "CartPole-v1"}
PENDULUM: Raw = {"name": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True}
CASES: dict[str, Case] = {
    "PPO": (HORIZON, {"name": "OnPolicyBatchReplay"}, MLP, CARTPOLE),
    "PPO, convolutions": (HORIZON, {"name": "OnPolicyBatchReplay"}, CONV, {"name": "probe/Image-v0"}),
    "A2C, recurrent": (
        {"name": "ActorCritic", "lam": 0.95, "training_frequency": 16},
        {"name": "OnPolicyBatchReplay"},
        GRU,
        CARTPOLE,
    ),
    "DDQN+PER, 3-step": ({"name": "DoubleDQN", "training_start_step": 200}, PRIORITIZED, MLP, CARTPOLE),
    "SAC": ({"name": "SoftActorCritic", "training_start_step": 200}, REPLAY, WIDE, PENDULUM),
    "CrossQ": (
        {"name": "CrossQ", "training_start_step": 200},
        REPLAY,
        {**WIDE, "critic_batch_norm": True},
        PENDULUM,
    ),
}
COMPILED = ("PPO", "SAC", "CrossQ")
# whose gradient steps of an update are one launch
SWEPT = ("PPO",)
PLAYGROUND: Case = (
    {**HORIZON, "time_horizon": 16, "minibatch_size": 2048},
    {"name": "OnPolicyBatchReplay"},
    MLP,
    {"name": "playground/CartpoleBalance", "num_envs": 1024, "normalize_obs": True},
)


class Finding(NamedTuple):
    """The outcome of a check; `is_ok` is None where it was left out."""

    is_ok: bool | None
    name: str
    detail: str


class CheckFailedError(Exception):
    """What the GPU did not show."""


def find_gpu() -> torch.device:
    """The first GPU, or an error that says why there is none."""
    if not torch.cuda.is_available():
        build = "is built without CUDA" if torch.version.cuda is None else "finds no driver or no device"
        raise LabError(f"--gpu: torch finds no GPU here: torch {torch.__version__} {build}")
    return torch.device("cuda", 0)


def check_gpu(device: torch.device) -> Iterator[Finding]:
    """All checks, each as soon as it is done."""
    yield _check("device", describe, device)
    for name, case in CASES.items():
        yield _check(f"{name}: numbers", compare, device, case, False)
    for name in COMPILED:
        case = CASES[name]
        yield _check(f"{name}: numbers, compiled", compare, device, case, True)
        yield _check(f"{name}: repeat, compiled", repeat, device, case)
        yield _check(f"{name}: waits, compiled", count_waits, device, case)
        yield _check(f"{name}: speed", measure_speed, device, case)
    for name in SWEPT:
        yield _check(f"{name}: updates as one launch", compare_updates, device, CASES[name])
    if importlib.util.find_spec("mujoco_playground") is None:
        yield Finding(None, "Playground", "not installed: uv sync --group playground --group playground-gpu")
    else:
        yield _check("Playground: waits, compiled", count_waits, device, PLAYGROUND)
        # simulated on a CPU it would take many minutes
        yield _check("Playground: speed", measure_speed, device, PLAYGROUND, False)


def _check(name: str, check: Callable[..., str], *args: Any) -> Finding:
    try:
        return Finding(True, name, check(*args))
    except CheckFailedError as error:
        return Finding(False, name, str(error))
    except Exception as error:
        # whatever a driver or a compiler may raise: the other checks are still worth having
        first = str(error).strip().partition("\n")[0]
        return Finding(False, name, f"{type(error).__name__}: {first}"[:300])


def describe(device: torch.device) -> str:
    """What this GPU is, and what runs it."""
    facts = torch.cuda.get_device_properties(device)
    free, total = (part / 2**30 for part in torch.cuda.mem_get_info(device))
    triton = "triton" if importlib.util.find_spec("triton") else "no triton"
    compiler = next(filter(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")), "no C compiler")
    return (
        f"{facts.name}, sm_{facts.major}{facts.minor}, {free:.1f} of {total:.1f} GB free, torch {torch.__version__}, "
        f"{triton}, {compiler}, Python {platform.python_version()}"
    )


class Loop:
    """A session without files."""

    def __init__(self, case: Case, device: torch.device, is_compiled: bool) -> None:
        spec = _build_spec(case, is_compiled)
        self.env = build_env(spec, TRAIN_ENV, 0, spec.env.num_envs, device)
        self.agent = build_session_agent(spec, self.env, 0, device=device)
        resolved, note = resolve_compile(spec, self.agent)
        if resolved.meta.compile != is_compiled:
            raise CheckFailedError(note)
        self.is_compiled = is_compiled
        self.obs, self.carry, self.frame = self.env.reset(), self.agent.init_carry(self.env.num_envs), 0

    def step(self) -> None:
        """One step of all envs."""
        act = self.agent.act(self.obs, self.carry, explore=True)
        step = self.env.step(act.action.cpu().numpy())
        self.agent.observe(self.obs, act, step)
        self.obs, self.carry = step.obs, reset_rows(act.carry, step.done)
        self.frame += self.env.num_envs

    def train(self, num_update: int) -> list[Metrics]:
        """Metrics of the next updates."""
        rows: list[Metrics] = []
        while len(rows) < num_update:
            self.step()
            row = self.agent.update(self.frame)
            if row is not None:
                rows.append(row)
        if self.is_compiled and any(step.graph is None for step in self.agent.context.guard.steps):
            raise CheckFailedError("compiling failed, plain calls were used")
        return rows


def _build_spec(case: Case, is_compiled: bool) -> Spec:
    algorithm, memory, net, env = case
    raw = {
        "name": "gpu",
        "agent": {"algorithm": algorithm, "memory": memory, "net": net},
        "env": {"num_envs": 8, "max_frame": 1_000_000, **env},
        "meta": {"seed": 0, "compile": is_compiled},
    }
    return parse_spec(raw)[0]


def compare(device: torch.device, case: Case, is_compiled: bool) -> str:
    """The last gradient steps of a training on the CPU, from the same state and batch on the GPU too."""
    host, other = Loop(case, CPU, False), Loop(case, device, is_compiled)
    steps = host.agent.context.guard.steps
    batches: dict[int, tuple[Any, ...]] = {}
    for index, step in enumerate(steps):
        _record(step, index, batches)
    host.train(2)
    state = copy.deepcopy(host.agent.algorithm.state_dict())
    loss_error = step_error = 0.0
    with _full_precision():
        for index, args in batches.items():
            (report, moved), (gpu_report, gpu_moved) = (
                _take_step(loop.agent, index, args, copy.deepcopy(state), place)
                for loop, place in ((host, CPU), (other, device))
            )
            loss_error = max(loss_error, *(calc_error(part, gpu_report[name]) for name, part in report.items()))
            step_error = max(step_error, calc_error(moved, gpu_moved))
    text = f"losses within {loss_error:.1e}, steps within {step_error:.1e} of the CPU's"
    # so that NaN fails too
    if not (loss_error <= MAX_LOSS_ERROR and step_error <= MAX_STEP_ERROR):
        raise CheckFailedError(f"{text}; at most {MAX_LOSS_ERROR:g} and {MAX_STEP_ERROR:g} is rounding")
    return text


@contextmanager
def _full_precision() -> Iterator[None]:
    """Float32 as a CPU computes it, without TF32."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _record(step: GradientStep, index: int, batches: dict[int, tuple[Any, ...]]) -> None:
    """Keep the arguments of a step's last call."""
    calc_loss = step.calc_loss

    def record(*args: Any) -> Loss:
        batches[index] = args
        return calc_loss(*args)

    step.calc_loss = record


def _take_step(
    agent: Agent, index: int, args: tuple[Any, ...], state: Any, device: torch.device
) -> tuple[dict[str, Tensor], Tensor]:
    """One gradient step from a state: its report, and what it adds to the weights."""
    algorithm, guard = agent.algorithm, agent.context.guard
    algorithm.load_state_dict(state)
    for module in algorithm.modules.values():
        module.train()
    step = guard.steps[index]
    before = [optimizer.flat.data.clone() for optimizer in step.optimizers]
    report = step(*_move(args, device))
    guard.check()
    moved = [optimizer.flat.data - old for optimizer, old in zip(step.optimizers, before, strict=True)]
    return {name: part.detach().cpu() for name, part in report.items()}, torch.cat(moved).cpu()


def calc_error(one: Tensor, two: Tensor) -> float:
    """The length of the difference, relative to the first; of small numbers, the difference itself."""
    one, two = one.double(), two.double()
    if one.dim() and not two.dim():
        # a compiled step gives the mean of what nobody reads sample by sample
        one = one.mean()
    scale = max(float(one.norm()), 1e-3 if one.dim() == 0 else 1e-6)
    return float((one - two).norm()) / scale


def _move(value: Any, device: torch.device) -> Any:
    """Tuples of tensors on a device."""
    if isinstance(value, Tensor):
        return value.detach().clone().to(device)
    if isinstance(value, tuple):
        parts = [_move(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def compare_updates(device: torch.device, case: Case) -> str:
    """The first updates with all their gradient steps as one launch, beside plain calls from the same seed."""
    plain, compiled = Loop(case, device, False), Loop(case, device, True)
    with _full_precision():
        pairs = list(zip(plain.train(2), compiled.train(2), strict=True))
    algorithm = compiled.agent.algorithm
    if not (isinstance(algorithm, PPO) and algorithm.sweep.function is not None):
        raise CheckFailedError("the steps were launched one by one")
    errors = [
        (abs(row[name] - value) / (abs(value) + MIN_METRIC), name)
        for known, row in pairs
        for name, value in known.items()
    ]
    # NaN counts as the worst
    error, name = max(errors, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
    text = f"metrics within {error:.1e} of plain calls"
    if not error <= MAX_STEP_ERROR:
        raise CheckFailedError(f"{text} ({name}); at most {MAX_STEP_ERROR:g} is rounding")
    return text


def repeat(device: torch.device, case: Case) -> str:
    """Two trainings from one seed."""
    one, two = (Loop(case, device, True).train(NUM_WARM) for _ in range(2))
    if one != two:
        index = next(index for index, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1])
        names = [name for name in one[index] if one[index][name] != two[index][name]]
        raise CheckFailedError(f"the same seed gave other numbers in update {index + 1}: {', '.join(names)}")
    return f"the same bits in {NUM_WARM} updates from one seed"


def count_waits(device: torch.device, case: Case) -> str:
    """Waits of the host, as torch reports them."""
    loop = Loop(case, device, True)
    loop.train(NUM_WARM)
    counts: dict[bool, list[int]] = {False: [], True: []}
    while len(counts[True]) < NUM_UPDATE:
        counts[False].append(_count_syncs(loop.step)[0])
        count, row = _count_syncs(lambda: loop.agent.update(loop.frame))
        if row is not None:
            counts[True].append(count)
    step, update = (sorted(numbers)[len(numbers) // 2] for numbers in counts.values())
    text = f"{step} per step, {update} per update"
    if step > MAX_STEP_WAIT or update > MAX_UPDATE_WAIT:
        raise CheckFailedError(f"{text}; at most {MAX_STEP_WAIT} and {MAX_UPDATE_WAIT} are needed")
    return text


def _count_syncs(call: Callable[[], Any]) -> tuple[int, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught), result


def measure_speed(device: torch.device, case: Case, has_cpu: bool = True) -> str:
    """Frames per second, on the CPU and on the GPU."""
    kinds = {"CPU plain": (CPU, False)} if has_cpu else {}
    kinds |= {"GPU plain": (device, False), "GPU compiled": (device, True)}
    speeds: list[str] = []
    for kind, (place, is_compiled) in kinds.items():
        loop = Loop(case, place, is_compiled)
        loop.train(NUM_WARM)
        torch.cuda.synchronize(device)
        frame, began = loop.frame, time.perf_counter()
        while time.perf_counter() - began < SPEED_SECONDS:
            loop.train(1)
        torch.cuda.synchronize(device)
        speeds.append(f"{kind} {(loop.frame - frame) / (time.perf_counter() - began):,.0f}")
    return f"frames per second: {', '.join(speeds)}"
