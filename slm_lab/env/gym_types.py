"""Gymnasium's types for envs of any kind."""

from typing import Any

import gymnasium as gym

GymEnv = gym.Env[Any, Any]
GymSpace = gym.Space[Any]
