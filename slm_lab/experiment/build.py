"""Build the envs and the agent of a session, seeded for that session."""

import torch

from slm_lab.agent.agent import Agent
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.env.render import RenderMode
from slm_lab.env.vec_env import VecEnv
from slm_lab.lib.device import pick_device, set_up
from slm_lab.spec.schema import Spec

# part of the seed key, so that envs for different uses have different seeds
TRAIN_ENV, EVAL_ENV, ENJOY_ENV, VIDEO_ENV, FINAL_ENV = 1, 2, 3, 4, 5


def build_session_agent(
    spec: Spec,
    env: VecEnv,
    session: int,
    num_envs: int | None = None,
    device: torch.device | None = None,
    only_acts: bool = False,
) -> Agent:
    """The agent of a session, with the session's seeds."""
    device = device or pick_device(spec.meta.device, session)
    set_up(device)
    return Agent(spec, env.facts, num_envs or spec.env.num_envs, (spec.meta.seed, session), device, only_acts)


def build_env(
    spec: Spec,
    use: int,
    session: int,
    num_envs: int,
    device: torch.device | None = None,
    render_mode: RenderMode | None = None,
) -> VecEnv:
    """Envs of a session; only those for training follow schedules."""
    key = (use, spec.meta.seed, session)
    device = device or pick_device(spec.meta.device, session)
    settings = build_settings(spec.env, key, num_envs, use == TRAIN_ENV, device=str(device))
    return build_vec_env(settings, render_mode=render_mode)
