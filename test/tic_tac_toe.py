"""Tic-tac-toe against a random player: a game that is over with the first forbidden move."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

NAME = "test/TicTacToe-v0"
LINES = np.array([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)])


class TicTacToe(gym.Env[Any, Any]):
    """The agent begins every other game, by chance; 1 for a win, -1 for a loss. The mask is in `info`, or `in_obs`."""

    def __init__(self, in_obs: bool = False) -> None:
        self.in_obs = in_obs
        board = spaces.Box(0, 1, (18,), np.float32)
        mask = spaces.MultiBinary(9)
        self.observation_space = spaces.Dict({"board": board, "action_mask": mask}) if in_obs else board
        self.action_space = spaces.Discrete(9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # 1 is the agent's, -1 the other player's
        self.board = np.zeros(9, np.int8)
        if self.np_random.integers(2):
            self._answer()
        return self._see()

    def _answer(self) -> None:
        self.board[self.np_random.choice(np.flatnonzero(self.board == 0))] = -1

    def _see(self) -> tuple[Any, dict[str, Any]]:
        board = np.concatenate([self.board == 1, self.board == -1]).astype(np.float32)
        mask = (self.board == 0).astype(np.int8)
        return ({"board": board, "action_mask": mask}, {}) if self.in_obs else (board, {"action_mask": mask})

    def _has_won(self, player: int) -> bool:
        return bool((self.board[LINES] == player).all(1).any())

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.board[action] != 0:
            raise ValueError(f"forbidden move {action}")
        self.board[action] = 1
        reward = float(self._has_won(1))
        if not reward and (self.board == 0).any():
            self._answer()
            reward = -float(self._has_won(-1))
        obs, info = self._see()
        return obs, reward, bool(reward) or not (self.board == 0).any(), False, info


gym.register(NAME, entry_point=lambda **kwargs: TicTacToe(**kwargs))
