"""A number that is not finite on a GPU: the host notices it late, and everything is as a CPU leaves it at once."""

import math

import numpy as np
import pytest
from torch.testing import assert_close

from slm_lab.agent.agent import Agent
from slm_lab.agent.learn.gradient import GradientFaultError
from slm_lab.env.vec_env import VecEnv
from test.gpu.graphs import pretend_graphs
from test.gpu.measure import HOST, build
from test.gpu.pretend import CUDA, pretend_gpu

# past the first updates
BAD_FRAME = 80


def run_to_fault(agent: Agent, env: VecEnv) -> GradientFaultError:
    """Train, with rewards of one step that are not numbers."""
    obs, frame = env.reset(), 0
    while True:
        act = agent.act(obs, explore=True)
        step = env.step(act.action.cpu().numpy())
        frame += env.num_envs
        if frame == BAD_FRAME:
            step = step._replace(reward=np.full_like(step.reward, math.nan))
        agent.observe(obs, act, step)
        try:
            agent.update(frame)
        except GradientFaultError as fault:
            env.close()
            return fault
        obs = step.obs


@pytest.mark.parametrize("name", ["ppo", "double_dqn_dueling_per", "sac_discrete", "sil"])
def test_nothing_moves_after_a_refused_step(name: str) -> None:
    """Of the steps behind it in the same update, of target nets, counters and generators."""
    host, env = build(name, HOST)
    known = run_to_fault(host, env)
    with pretend_gpu(), pretend_graphs():
        agent, env = build(name, CUDA, is_compiled=True)
        fault = run_to_fault(agent, env)
        modules = {key: module.state_dict() for key, module in agent.algorithm.modules.items()}
        assert bool(agent.context.guard.is_ok)
        found = {key: {part: tensor.cpu() for part, tensor in state.items()} for key, state in modules.items()}
    assert fault.frame == known.frame
    assert agent.algorithm.opt_step == host.algorithm.opt_step
    for key, module in host.algorithm.modules.items():
        assert_close(found[key], dict(module.state_dict()), rtol=1e-4, atol=1e-5)
