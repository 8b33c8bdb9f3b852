"""What is not finite stops a session at once, changes no weight, and leaves a bundle that fails again."""

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bench.faults.specs import ALGORITHMS, NETS
from bench.faults.specs import make_spec as make_small_spec
from slm_lab.agent.action.distribution import Categorical
from slm_lab.agent.algorithm import critic, reinforce, sac, sarsa
from slm_lab.agent.learn.gradient import GradientFaultError, GradientStep, Loss
from slm_lab.agent.net.head import ValueHead
from slm_lab.audit import replay_fault as replay_module
from slm_lab.audit.difference import Comparison
from slm_lab.audit.replay_fault import Replayed, read_bundle, replay_fault
from slm_lab.cli.replay_fault import app
from slm_lab.experiment import fault as fault_module
from slm_lab.experiment.checkpoint.state import load_state, save_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.fault import MAX_BYTES
from slm_lab.experiment.launch import Options, start
from slm_lab.lib.errors import DivergenceError, EnvFaultError, LabError
from slm_lab.results.folder import RunFolder, save_spec
from slm_lab.spec.schema import Spec

# those that learn
LEARNERS = [name for name in ALGORITHMS if name not in ("Random", "VanillaDQN")]
BODY = [{"LazyLinear": {"out_features": 8}}, {"Dropout": {"p": 0.5}}]
DROPOUT = {"type": "TorchArcNet", "arc": {"modules": {"body": {"Sequential": BODY}}}}
# the frame from which on something is wrong: weights have been trained and saved by then
BAD_FRAME = 120
NUM_ENVS = 2


class Spoiled(gym.Wrapper[Any, Any, Any, Any]):
    """Gives a number that is not finite at one step of each episode that starts from an odd seed."""

    def __init__(self, what: str = "", value: float = math.nan, **kwargs: Any) -> None:
        super().__init__(gym.make("CartPole-v1", **kwargs))
        self.what, self.value = what, value
        self.is_odd = False
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        self.is_odd = seed is not None and seed % 4 == 1
        obs, info = self.env.reset(seed=seed)
        if self.what == "start" and self.is_odd:
            obs = obs * self.value
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        self.t += 1
        if self.is_odd and self.t == 5:
            if self.what == "token":
                raise EnvFaultError(f"cannot log in with {os.environ['PLANTED_TOKEN']}", "reward", 0)
            if self.what == "reward":
                reward = self.value
            elif self.what == "obs":
                obs = obs.copy()
                obs[2] = self.value
        return obs, reward, *rest


class Unborn(gym.Wrapper[Any, Any, Any, Any]):
    """Gives a first observation of another shape."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(gym.make("CartPole-v1", **kwargs))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed)
        return obs[:2], info


class Rich(gym.RewardWrapper[Any, Any]):
    """Pays so much from some step of an episode on that its square has no number."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(gym.make("CartPole-v1", **kwargs))

    def reward(self, reward: Any) -> float:
        return 1e30 if abs(self.unwrapped.state[2]) > 0.1 else 1.0  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def _envs() -> Iterator[None]:
    for kind in (Spoiled, Unborn, Rich):
        gym.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=60)
    yield
    for kind in (Spoiled, Unborn, Rich):
        del gym.registry[f"{kind.__name__}-v0"]


def make_spec(algorithm: str, net: str | dict[str, Any] = "MLP", **env: Any) -> Spec:
    env = {"num_envs": NUM_ENVS, "max_frame": 2000, **env}
    return make_small_spec(algorithm, net, env, {"log_frequency": 1000, "checkpoint_frequency": 16})


def do_again(path: Path) -> Replayed:
    return replay_fault(read_bundle(path), path)


class Run:
    """A session that must stop; what it left behind."""

    def __init__(self, spec: Spec, path: Path, prepare: Callable[[Session], None] = lambda _: None) -> None:
        self.folder = RunFolder(path, spec.name)
        save_spec(self.folder.trial_spec_file(0), spec)
        self.session = Session(spec, self.folder, 0, 0, lambda _: None, lambda: False)
        prepare(self.session)
        with np.errstate(all="ignore"), pytest.raises(DivergenceError) as info:
            self.session.run()
        self.message = str(info.value)
        (self.bundle,) = (path / "fault").iterdir()
        self.content = read_bundle(self.bundle)
        self.frame = self.content["frame"]

    def check(self, tensor: str, obstacle: str | None = None) -> None:
        """The message is one line with all there is to know, the checkpoint is good, the bundle small and exact."""
        assert "\n" not in self.message
        assert re.search(rf"^{tensor}\b.*\bat frame {self.frame}\b", self.message), self.message
        assert self.message.endswith(f"see `slm-lab replay-fault {self.bundle}`")
        assert self.bundle.stat().st_size < MAX_BYTES
        saved = load_state(self.folder.resume_file(0, 0))
        assert saved["frame"] < self.frame
        for module in saved["agent"]["algorithm"]["modules"].values():
            assert all(tensor.isfinite().all() for tensor in module.values())
        replayed = do_again(self.bundle)
        assert replayed.is_reproduced == (obstacle is None), replayed
        if obstacle is not None:
            assert replayed.message == f"cannot be done again: {obstacle}"


# --- what an env gives


@pytest.mark.parametrize(("algorithm", "what"), [("PPO", "reward"), ("DQN", "obs")])
def test_what_an_env_gives(algorithm: str, what: str, tmp_path: Path) -> None:
    value = {"reward": math.nan, "obs": -math.inf}[what]
    spec = make_spec(algorithm, name="Spoiled-v0", kwargs={"what": what, "value": value})
    run = Run(spec.replace(meta={"checkpoint_frequency": 2}), tmp_path)
    run.check({"reward": "reward of the env", "obs": "observation of the env"}[what])
    place = re.search(
        r"env (\d), episode (\d+) \(seed \d+\), step 5: the (reward is nan|observation is -inf at \[2\])", run.message
    )
    assert place is not None
    assert int(place[1]) == run.content["env"]["index"]
    assert int(place[2]) == run.content["env"]["episode"]
    # it was the step that had not been done yet
    assert run.frame == run.session.frame + NUM_ENVS


def test_a_bundle_holds_no_secret_that_an_env_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", "a-token-of-no-known-shape")
    spec = make_spec("PPO", name="Spoiled-v0", kwargs={"what": "token"})
    run = Run(spec.replace(meta={"checkpoint_frequency": 2}), tmp_path)
    assert b"a-token-of-no-known-shape" not in run.bundle.read_bytes()
    assert "cannot log in with [secret]" in run.content["message"]
    assert do_again(run.bundle) == Replayed(True, "cannot log in with [secret]")


def test_the_first_observation_of_an_episode(tmp_path: Path) -> None:
    spec = make_spec("PPO", name="Spoiled-v0", kwargs={"what": "start", "value": math.nan})
    run = Run(spec.replace(meta={"checkpoint_frequency": 2}), tmp_path)
    run.check("observation of the env")
    assert "the first observation of an episode is not finite" in run.message


def test_a_fault_in_the_first_reset_is_at_frame_0(tmp_path: Path) -> None:
    run = Run(make_spec("PPO", name="Unborn-v0"), tmp_path)
    assert run.message.startswith("observation of the env is not what it should be at frame 0: env 0, episode 0 (seed ")
    assert "step 0: the observation has the shape (2,), the space says (4,)" in run.message
    assert (run.frame, run.session.frame) == (0, 0)
    assert do_again(run.bundle).is_reproduced


def test_envs_in_workers_leave_the_same_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parent
    monkeypatch.syspath_prepend(str(here))
    (tmp_path / "spoiled_env.py").write_text(
        "import gymnasium as gym\nfrom test_fault import Spoiled\n"
        "gym.register('SpoiledToo-v0', entry_point=Spoiled, max_episode_steps=60)\n"
    )
    monkeypatch.chdir(tmp_path)
    kwargs = {"what": "reward", "value": math.inf}
    spec = make_spec("PPO", name="spoiled_env:SpoiledToo-v0", kwargs=kwargs)
    one = Run(spec, tmp_path / "one")
    two = Run(spec.replace(env={"num_workers": 2}), tmp_path / "two")
    assert one.content["error"] == two.content["error"]
    assert np.array_equal(one.content["env"]["action"], two.content["env"]["action"])
    assert do_again(two.bundle).is_reproduced


# --- what an update computes


class Plant:
    """Something that goes wrong from a frame on, and goes on to do so when it is done again."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.is_on = False
        # trainings that went well after it began
        self.num_update = 0

    def watch(self, session: Session) -> None:
        """Begin at BAD_FRAME."""
        update = session.agent.update

        def counted(frame: int) -> Any:
            self.is_on = frame >= BAD_FRAME
            metrics = update(frame)
            self.num_update += self.is_on and metrics is not None
            return metrics

        session.agent.update = counted  # type: ignore[method-assign]

    def spoil(self, tensor: Any) -> Any:
        """A tensor or an array of which one number is wrong."""
        if not self.is_on:
            return tensor
        mask = np.zeros(tensor.shape)
        mask[(0,) * tensor.ndim] = 1
        if isinstance(tensor, torch.Tensor):
            return torch.where(torch.from_numpy(mask) > 0, tensor * self.value, tensor)
        return np.where(mask > 0, tensor * self.value, tensor).astype(tensor.dtype)


def plant_target(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    next_value, calc_return, scale = sarsa.SARSA._calc_next_value, reinforce.calc_return, critic.TargetScale.update
    # discrete SAC sums over actions itself
    backup, td_loss = ValueHead.backup, sac.SoftBase.calc_td_loss
    monkeypatch.setattr(sarsa.SARSA, "_calc_next_value", lambda *args: plant.spoil(next_value(*args)))
    monkeypatch.setattr(ValueHead, "backup", lambda *args, **rest: plant.spoil(backup(*args, **rest)))
    monkeypatch.setattr(
        sac.SoftBase, "calc_td_loss", lambda self, q, ret, *rest: td_loss(self, q, plant.spoil(ret), *rest)
    )
    monkeypatch.setattr(reinforce, "calc_return", lambda *args: plant.spoil(calc_return(*args)))

    def spoiled(self: Any, target: torch.Tensor) -> float:
        # in place: what the loss is given
        target.copy_(plant.spoil(target))
        return scale(self, target)

    monkeypatch.setattr(critic.TargetScale, "update", spoiled)


def plant_log_prob(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    log_prob, both, log_softmax = Categorical.log_prob, Categorical.log_prob_entropy, torch.Tensor.log_softmax

    def spoiled_both(self: Any, param: Any, action: Any) -> Any:
        first, entropy = both(self, param, action)
        return plant.spoil(first), entropy

    monkeypatch.setattr(Categorical, "log_prob", lambda *args: plant.spoil(log_prob(*args)))
    monkeypatch.setattr(Categorical, "log_prob_entropy", spoiled_both)
    # soft actor-critics take the log probabilities of all actions
    monkeypatch.setattr(torch.Tensor, "log_softmax", lambda *args: plant.spoil(log_softmax(*args)))


def plant_gradient(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    init = GradientStep.__init__

    def spoiled_init(self: Any, calc_loss: Any, *args: Any, **kwargs: Any) -> None:
        def calc(*batch: Any) -> Any:
            loss, report = calc_loss(*batch)
            if plant.is_on:
                # 0, and its gradient is 0 times infinity
                loss = loss + (self.parameters[-1] * 0).sum().sqrt()
            return Loss(loss, report)

        init(self, calc, *args, **kwargs)

    monkeypatch.setattr(GradientStep, "__init__", spoiled_init)


PLANTS = {"target": plant_target, "log_prob": plant_log_prob, "gradient": plant_gradient}
# a return is all the advantage that there is without a critic; values of actions have no probabilities
CASES = [
    (algorithm, what, "advantage" if (algorithm, what) == ("Reinforce", "target") else what)
    for algorithm in LEARNERS
    for what in PLANTS
    if what != "log_prob" or algorithm not in ("SARSA", "DQN", "DoubleDQN")
]


@pytest.mark.parametrize(("algorithm", "what", "name"), CASES)
def test_what_an_update_computes(
    algorithm: str, what: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(math.nan if what != "target" else math.inf)
    PLANTS[what](plant, monkeypatch)
    run = Run(make_spec(algorithm), tmp_path, plant.watch)
    assert plant.num_update == 0
    run.check(name)
    if what == "gradient":
        assert re.search(r"^gradient of \w+\.\S*(weight|bias|log_alpha)\b", run.message)
    # nothing has been poisoned: neither by the failed step, nor by looking for its cause
    assert all(tensor.isfinite().all() for module in run.content["modules"].values() for tensor in module.values())
    for role, optimizer in run.content["optimizers"].items():
        moments = run.session.agent.algorithm.optimizers[role].moments
        assert all(torch.equal(optimizer["moments"][name], moment) for name, moment in moments.items())


@pytest.mark.parametrize("algorithm", ["PPO", "SARSA", "Reinforce", "DQN"])
def test_a_reward_that_no_env_has_looked_at(algorithm: str, tmp_path: Path) -> None:
    bad: list[int] = []

    def prepare(session: Session) -> None:
        step = session.env.step

        def poisoned(action: Any) -> Any:
            result = step(action)
            if session.frame + NUM_ENVS >= BAD_FRAME and not bad:
                bad.append(session.frame + NUM_ENVS)
                result.reward[1] = math.nan
            return result

        session.env.step = poisoned  # type: ignore[method-assign]

    run = Run(make_spec(algorithm), tmp_path, prepare)
    run.check("reward")
    assert "env 1" in run.message
    if algorithm != "DQN":
        assert f"of frame {bad[0]})" in run.message


@pytest.mark.parametrize(("save_frequency", "kind", "frame"), [(8, "weight", BAD_FRAME), (16, "gradient", 128)])
def test_weights_that_a_step_has_thrown_away_are_not_saved(
    save_frequency: int, kind: str, frame: int, tmp_path: Path
) -> None:
    """A gradient is finite and the step along it is not: seen by whatever comes first, a save or a training."""

    def prepare(session: Session) -> None:
        update = session.agent.update

        def thrown(frame: int) -> Any:
            metrics = update(frame)
            if frame == BAD_FRAME:
                session.agent.algorithm.optimizers["actor"].flat.data[-1] = math.inf
            return metrics

        session.agent.update = thrown  # type: ignore[method-assign]

    run = Run(make_spec("PPO").replace(meta={"checkpoint_frequency": save_frequency}), tmp_path, prepare)
    # a training does its bad step again; what a save has seen was made by one that is over
    is_over = kind == "weight"
    run.check("weight of net.actor", "the step that made it was taken before anyone looked" if is_over else None)
    assert (run.content["kind"], run.frame) == (kind, frame)
    result = CliRunner().invoke(app, [str(run.bundle)])
    assert result.exit_code == is_over
    if is_over:
        # nor is a bundle that does not say so taken for a proof
        save_state(run.bundle, {**run.content, "obstacle": None, "again": run.content["finding"]})
        assert not do_again(run.bundle).is_reproduced


@pytest.mark.parametrize("net", [{**NETS["MLP"], "batch_norm": True}, DROPOUT])
def test_statistics_and_generators_are_those_of_before(
    net: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(math.nan)
    plant_gradient(plant, monkeypatch)
    before: list[dict[str, Any]] = []

    def prepare(session: Session) -> None:
        plant.watch(session)
        (step,) = session.agent.context.guard.steps
        calc = step.calc_loss

        def kept(*args: Any) -> Any:
            if plant.is_on and not before:
                state = {
                    name: tensor.clone() for name, tensor in session.agent.algorithm.modules["net"].state_dict().items()
                }
                before.append({"net": state, "random": torch.get_rng_state()})
            return calc(*args)

        step.calc_loss = kept

    run = Run(make_spec("ActorCritic", net), tmp_path, prepare)
    run.check("gradient")
    assert all(torch.equal(tensor, run.content["modules"]["net"][name]) for name, tensor in before[0]["net"].items())
    assert torch.equal(run.content["agent"]["torch_generator"], before[0]["random"])


# --- numbers that overflow by themselves: nothing is planted, so that another process can do it again


def test_the_command_does_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(make_spec("PPO", name="Rich-v0"), tmp_path)
    run.check("loss")
    assert re.search(r"the largest number before it is \S+, of target", run.message)
    read: list[Path] = []

    def load_counted(path: Path) -> dict[str, Any]:
        read.append(path)
        return load_state(path)

    monkeypatch.setattr(replay_module, "load_state", load_counted)
    result = CliRunner().invoke(app, [str(run.bundle)])
    assert result.exit_code == 0, result.output
    assert read == [run.bundle]
    assert "reproduced: loss is" in result.output
    assert re.search(r"ret +\(16,\) .*e\+", result.output)
    assert "Try: " in result.output
    # with a batch that does not fail it says so
    content = load_state(run.bundle)
    for index in (3, 4, 5):
        content["args"][0]["__items__"][index] = torch.linspace(0, 1, 16)
    save_state(run.bundle, content)
    result = CliRunner().invoke(app, [str(run.bundle)])
    assert result.exit_code == 1
    assert "\nnot reproduced: the loss is " in result.output


@pytest.mark.slow
def test_graphs_change_nothing_either_and_need_not_be_waited_for(tmp_path: Path) -> None:
    spec = make_spec("DQN", name="Rich-v0").replace(meta={"compile": True})

    def defer(session: Session) -> None:
        session.agent.context.guard.is_deferred = True

    now, later = Run(spec, tmp_path / "now"), Run(spec, tmp_path / "later", defer)
    now.check("loss")
    later.check("loss")
    assert now.message.partition(";")[0] == later.message.partition(";")[0]
    # training_iter is 3: the steps after the bad one changed nothing
    comparison = Comparison()
    for part in ("modules", "optimizers"):
        comparison.compare_states(now.content[part], later.content[part])
    assert comparison.is_same
    assert now.content["opt_step"] <= later.content["opt_step"]


# --- size


def test_what_has_no_room_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(math.nan)
    plant_gradient(plant, monkeypatch)
    whole = Run(make_spec("PPO"), tmp_path / "whole", plant.watch)
    sizes = {name: fault_module.count_bytes(whole.content[name]) for name in ("modules", "args", "rollout", "agent")}
    room = sizes["modules"] + sizes["args"] + 100
    monkeypatch.setattr(fault_module, "MAX_BYTES", room + fault_module._ROOM)
    small = Run(make_spec("PPO"), tmp_path / "small", plant.watch)
    small.check("gradient")
    assert small.content["left_out"] == ["agent", "optimizers"]
    assert "rollout" not in small.content
    monkeypatch.setattr(fault_module, "MAX_BYTES", sizes["modules"] - 1 + fault_module._ROOM)
    tiny = Run(make_spec("PPO"), tmp_path / "tiny", plant.watch)
    replayed = do_again(tiny.bundle)
    assert not replayed.is_reproduced
    assert "cannot be done again: the weights have no room in a bundle of" in replayed.message
    assert CliRunner().invoke(app, [str(tiny.bundle)]).exit_code == 1


class OwnBatch(NamedTuple):
    """What a loss of someone's own may take."""

    obs: torch.Tensor


@pytest.mark.parametrize("what", ["named tuple", "object", "type that is not loaded"])
def test_batches_of_types_of_your_own(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(math.nan)
    plant_gradient(plant, monkeypatch)
    call = GradientStep.__call__

    def call_otherwise(self: Any, *args: Any) -> Any:
        try:
            return call(self, *args)
        except GradientFaultError as fault:
            fault.step_args = (plant if what == "object" else OwnBatch(args[0].obs),)
            self.calc_loss = lambda batch: Loss(self.parameters[0].sum() * math.nan, {})
            raise

    with monkeypatch.context() as patch:
        patch.setattr(GradientStep, "__call__", call_otherwise)
        run = Run(make_spec("PPO"), tmp_path, plant.watch)
    if what == "object":
        assert do_again(run.bundle).message == "cannot be done again: the loss takes a Plant, which is not plain data"
        return
    if what == "named tuple":
        (batch,) = replay_module.unpack(run.content["args"], torch.device("cpu"))
        assert type(batch) is OwnBatch
        assert [row.name for row in replay_module.tabulate(run.content)[0]] == ["obs"]
        return
    run.content["args"][0]["__tuple__"] = "elsewhere.OwnBatch"
    save_state(run.bundle, run.content)
    result = CliRunner().invoke(app, [str(run.bundle)])
    assert result.exit_code == 2
    assert (
        "its batch is a elsewhere.OwnBatch, which is not loaded; name the module of it with --import" in result.output
    )


# --- bundles of others


@pytest.fixture(scope="module")
def rich_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(make_spec("PPO", name="Rich-v0"), tmp_path_factory.mktemp("rich"))


def test_a_bundle_of_others_is_replayed_only_if_it_is_trusted(rich_run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    shutil.copy(rich_run.bundle, other)
    result = CliRunner().invoke(app, [str(other)])
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1
    assert re.search(r"^Error: .*is not where a run here would have put it.*; add --trust if you know", result.output)
    assert CliRunner().invoke(app, [str(other), "--trust"]).exit_code == 0
    # nor is a folder of that name a run
    place = tmp_path / "run" / "fault" / rich_run.bundle.name
    place.parent.mkdir(parents=True)
    shutil.copy(rich_run.bundle, place)
    with pytest.raises(LabError, match="add --trust"):
        read_bundle(place)
    # the way to it may be any
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(rich_run.bundle.parent)
        assert CliRunner().invoke(app, [rich_run.bundle.name]).exit_code == 0


SPOILT: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "other"}, "is not a fault bundle"),
    "format": ({"format": 99}, "another version"),
    "spec": ({"spec": {}}, "is not a fault bundle"),
    "modules": ({"modules": {}}, "does not fit together"),
    "args": ({"args": [1, 2]}, "does not fit together"),
    "step": ({"step": 7}, "does not fit together"),
    "facts": ({"facts": None}, "the spaces of the env are missing"),
    "finding": ({"finding": {}, "again": None}, "does not fit together"),
    "message": ({"message": torch.ones(2)}, "is not a fault bundle"),
    "tuple": ({"kind": "metric", "args": {"__tuple__": "", "__items__": 5}}, "does not fit together"),
    "left out": ({"left_out": 5}, "does not fit together"),
}


@pytest.mark.parametrize("name", [*SPOILT, "nothing", "half", "large"])
def test_a_bundle_that_is_not_what_it_seems_is_refused_in_one_line(name: str, rich_run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    match = {"nothing": "cannot be read", "half": "damaged", "large": "more than a fault bundle can have"}.get(name, "")
    if name == "half":
        other.write_bytes(rich_run.bundle.read_bytes()[:-100])
    elif name == "large":
        with other.open("wb") as file:
            file.truncate(MAX_BYTES + 1)
    elif name in SPOILT:
        change, match = SPOILT[name]
        save_state(other, {**rich_run.content, **change})
    result = CliRunner().invoke(app, [str(other), "--trust"])
    assert result.exit_code == 2, result.output
    assert re.search(rf"^Error: .*{match}", result.output), result.output
    assert len(result.output.splitlines()) == 1


CODE = "\x1b]0;x\x07\x1b[2J\x9b\u202e\n"


def test_text_of_a_bundle_cannot_move_the_cursor(tmp_path: Path) -> None:
    run = Run(make_spec("PPO", name="Spoiled-v0", kwargs={"what": "reward"}), tmp_path)
    texts = {"message": CODE, "left_out": [CODE], "error": CODE, "modules": {CODE: torch.ones(2)}}
    changes: list[tuple[dict[str, Any], int]] = [
        # the same fault with another text is another
        ({}, 1),
        ({"kind": "metric", "obstacle": CODE}, 1),
        ({"kind": "gradient", "facts": {"action": {"kind": CODE}}}, 2),
        ({"env": {**run.content["env"], "name": f"{CODE}:{CODE}"}}, 2),
    ]
    for change, code in changes:
        save_state(run.bundle, {**run.content, **texts, **change})
        result = CliRunner().invoke(app, [str(run.bundle)])
        assert result.exit_code == code, result.output
        assert result.output.replace("\n", "").isprintable(), result.output
        if code == 1:
            assert f"It was: {ascii(CODE)[1:-1]}\n" in result.output


# --- trials


@pytest.mark.usefixtures("undrawn")
def test_a_trial_that_diverges_is_failed_and_names_its_bundle(tmp_path: Path) -> None:
    spec = make_spec("PPO", name="Spoiled-v0", kwargs={"what": "reward"})
    result = start(spec, Options(data_dir=tmp_path / "data"))
    assert result.exit_code == 1
    assert "reward of the env is not finite at frame" in result.failures[0]
    (bundle,) = result.folder.glob("fault/*.safetensors")
    assert str(bundle) in result.failures[0]
