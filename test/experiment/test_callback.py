"""Python of one's own in a run: callbacks, an env from a factory, and a training loop from public parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import slm_lab
from slm_lab.agent.agent import reset_rows
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.callback import Callback, CallbackError, Hooks, Moment, Row
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec

pytestmark = pytest.mark.usefixtures("undrawn")


class Watch(Callback):
    """Notes every call, and counts rows across stops."""

    def __init__(self, last_row: int = 1000) -> None:
        self.calls: list[tuple[str, int]] = []
        self.num_row = 0
        self.last_row = last_row

    def on_start(self, moment: Moment) -> None:
        self.calls.append(("start", moment.frame))

    def on_row(self, moment: Moment, row: Row) -> bool:
        # random numbers of its own, and a question to the agent, change nothing
        torch.rand(3)
        moment.agent.act(torch.zeros(1, 4).numpy())
        self.calls.append(("row", int(row["frame"])))
        self.num_row += 1
        return self.num_row >= self.last_row

    def on_eval(self, moment: Moment, row: Row) -> None:
        self.calls.append(("eval", int(row["frame"])))

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        self.calls.append(("checkpoint", moment.frame))
        assert path.exists()

    def state_dict(self) -> dict[str, Any]:
        return {"num_row": self.num_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_row = state["num_row"]


class Steps(Callback):
    """Counts steps."""

    num_step = 0

    def on_step(self, moment: Moment) -> None:
        self.num_step += 1


def same_weights(one: Path, two: Path, session: int = 0) -> bool:
    there, here = (load_state(RunFolder(path, "tiny").model_file(0, session, "last"))["modules"] for path in (one, two))
    return all(torch.equal(value, here[net][key]) for net in there for key, value in there[net].items())


def test_callbacks_see_what_happens_and_change_nothing(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    dropout = {
        "type": "TorchArcNet",
        "arc": {"modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 8}}, {"Dropout": {"p": 0.1}}]}}},
    }
    meta = {"rigorous_eval": 2, "eval_frequency": 300, "checkpoint_frequency": 400}
    spec = tiny_spec("Reinforce", net=dropout, meta=meta)
    watch, steps = Watch(), Steps()
    watched = slm_lab.run(spec, tmp_path / "watched", callbacks=[watch, steps]).folder
    assert " ".join(f"{what} {frame}" for what, frame in watch.calls) == (
        "start 0 row 200 eval 300 row 400 checkpoint 400 row 600 eval 600 checkpoint 600"
    )
    assert steps.num_step == 150
    assert same_weights(watched, slm_lab.run(spec, tmp_path / "alone").folder)


def test_a_callback_ends_sessions_and_keeps_its_state(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = tiny_spec(env={"max_frame": 4000}, meta={"max_session": 2})
    result = slm_lab.run(spec, tmp_path, callbacks=[Watch(3)])
    # the second session does not begin with the count of the first
    assert [(one.is_done, one.frame) for one in result.results] == [(True, 600), (True, 600)]
    assert result.metrics is not None
    assert result.metrics.is_complete
    # it stays ended, unless the run is made longer
    again = slm_lab.resume(result.folder, callbacks=[Watch(3)])
    assert [one.frame for one in again.results] == [600, 600]
    longer = slm_lab.resume(result.folder, env__max_frame=5000, callbacks=[watch := Watch(9)])
    assert [one.frame for one in longer.results] == [1800, 1800]
    assert watch.calls[0] == ("start", 600)


def test_a_stopped_run_with_callbacks_resumes_exactly(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = tiny_spec(env={"max_frame": 2000})
    whole = slm_lab.run(spec, tmp_path / "whole", callbacks=[Watch(7)]).folder
    with pytest.raises(CallbackError, match=r"callback Failing\.on_row at frame 600 failed: ValueError: no"):
        slm_lab.run(spec, tmp_path / "failed", callbacks=[Watch(7), Failing()])
    (failed,) = (tmp_path / "failed").iterdir()
    assert slm_lab.resume(failed, callbacks=[Watch(7)]).results[0].frame == 1400
    assert same_weights(whole, failed)
    assert find_difference(whole, failed, "tiny") is None


class Failing(Callback):
    """Fails in the third row."""

    def on_row(self, moment: Moment, row: Row) -> None:
        if row["frame"] == 600:
            raise ValueError("no")


class Meddling(Callback):
    """Changes a weight."""

    def on_row(self, moment: Moment, row: Row) -> None:
        next(moment.agent.algorithm.modules["net"].parameters()).data.add_(1e-3)


class Permitted(Meddling):
    """Says so."""

    changes_agent = True


def test_a_change_of_the_agent_is_noticed(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match="changed the agent, so the run could not be repeated"):
        slm_lab.run(tiny_spec(), tmp_path, callbacks=[Meddling()])
    assert slm_lab.run(tiny_spec(), tmp_path / "permitted", callbacks=[Permitted()]).exit_code == 0


def test_a_run_that_had_callbacks_says_so_without_them(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    folder = slm_lab.run(tiny_spec(), tmp_path, callbacks=[Watch()]).folder
    slm_lab.resume(folder, env__max_frame=800)
    log = RunFolder(folder, "tiny").log_file(0).read_text()
    assert "was trained with callbacks that are not here: Watch" in log


def test_an_env_from_a_factory(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    def make(length: float = 0.5, **kwargs: Any) -> gym.Env[Any, Any]:
        env = gym.make("CartPole-v1", **kwargs)
        env.unwrapped.length = length  # type: ignore[attr-defined]
        return env

    spec = tiny_spec(env={"name": "Mine-v0", "kwargs": {"length": 0.7}}, meta={"max_session": 2})
    result = slm_lab.run(spec, tmp_path, env=make)
    assert [one.is_done for one in result.results] == [True, True]
    slm_lab.resume(result.folder, env=make, env__max_frame=800)
    with pytest.raises(LabError, match="'CartPole-v1' is registered already; give your env another"):
        slm_lab.run(tiny_spec(), tmp_path, env=make)


def test_a_training_loop_of_ones_own(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = tiny_spec()
    env, agent = slm_lab.build(spec)
    obs, carry = env.reset(), agent.init_carry(env.num_envs)
    for frame in range(env.num_envs, spec.env.max_frame + 1, env.num_envs):
        act = agent.act(obs, carry, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs, carry = step.obs, reset_rows(act.carry, step.done)
        agent.update(frame)
    env.close()
    own = agent.algorithm.modules["net"].state_dict()
    last = load_state(RunFolder(slm_lab.run(spec, tmp_path).folder, "tiny").model_file(0, 0, "last"))["modules"]["net"]
    assert all(torch.equal(own[key], last[key]) for key in own)


class Wild(Meddling):
    """Changes a weight, then fails."""

    def on_row(self, moment: Moment, row: Row) -> None:
        super().on_row(moment, row)
        raise ValueError("after a change")


@pytest.mark.parametrize("callback", [Meddling, Wild])
def test_what_a_callback_must_not_change_is_saved_as_it_was(
    callback: type[Meddling], tiny_spec: Callable[..., Spec], tmp_path: Path
) -> None:
    spec = tiny_spec(env={"max_frame": 600})
    whole = slm_lab.run(spec, tmp_path / "whole").folder
    with pytest.raises(CallbackError):
        slm_lab.run(spec, tmp_path / "changed", callbacks=[callback()])
    (changed,) = (tmp_path / "changed").iterdir()
    slm_lab.resume(changed)
    assert same_weights(whole, changed)


def test_callbacks_of_one_class_keep_their_own_states(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    folder = slm_lab.run(tiny_spec(env={"max_frame": 600}), tmp_path, callbacks=[one := Watch(), Watch()]).folder
    first, second = Watch(), Watch()
    first.num_row, second.num_row = -50, -500
    slm_lab.resume(folder, env__max_frame=1000, callbacks=[first, second])
    assert first.num_row == second.num_row > one.num_row
    hooks = Hooks([first, second])
    first.num_row, second.num_row = 5, 5000
    saved = hooks.state_dict()
    hooks.load_state_dict(saved)
    assert (first.num_row, second.num_row) == (5, 5000)


def test_a_state_that_no_checkpoint_can_hold_is_refused_at_once(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    class Odd(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": {1, 2}}

    with pytest.raises(CallbackError, match=r"callback Odd\.state_dict: a state cannot hold a set"):
        slm_lab.run(tiny_spec(), tmp_path, callbacks=[Odd()])
