"""Gymnasium's types for envs of any kind."""

from typing import Any

import gymnasium as gym

GymEnv = gym.Env[Any, Any]
GymSpace = gym.Space[Any]
# `info` of a reset or step, and `options` of a reset
Info = dict[str, Any]
