"""Running normalisers of observations and rewards; part of the agent's state, frozen in evaluation."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class RunningStats:
    """Mean and variance of everything seen, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 0.0

    def update(self, batch: Array) -> None:
        """Merge a batch (B, ...)."""
        count = len(batch)
        mean = batch.mean(0)
        var = batch.var(0)
        delta = mean - self.mean
        total = self.count + count
        if self.count:
            square = self.var * self.count + var * count + delta**2 * self.count * count / total
            self.mean = self.mean + delta * count / total
            self.var = square / total
        else:
            self.mean, self.var = np.asarray(mean, float), np.asarray(var, float)
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Mean, variance and count."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved statistics."""
        self.mean, self.var = np.array(state["mean"]), np.array(state["var"])
        self.count = float(state["count"])


class ObsNormalizer:
    """Shifts and scales observations, then clips them."""

    def __init__(self, shape: tuple[int, ...], clip: float | None, eps: float = 1e-8) -> None:
        self.stats = RunningStats(shape)
        self.clip = clip
        self.eps = eps

    def update(self, obs: Array) -> None:
        """Take a batch of raw observations into the statistics."""
        self.stats.update(obs)

    def __call__(self, obs: Array) -> Array:
        """Normalised observations, float32."""
        normal = (obs - self.stats.mean) / np.sqrt(self.stats.var + self.eps)
        if self.clip is not None:
            normal = np.clip(normal, -self.clip, self.clip)
        return normal.astype(np.float32)


class RewardScaler:
    """Turns raw rewards into what the agent learns from: scaled, normalised, clipped; scores stay raw."""

    def __init__(
        self,
        num_envs: int,
        gamma: float,
        scale: float,
        normalize: bool,
        clip: float | tuple[float, float] | None,
        eps: float = 1e-8,
    ) -> None:
        self.gamma = gamma
        self.scale = scale
        self.normalize = normalize
        self.bounds = (-clip, clip) if isinstance(clip, (int, float)) else clip
        self.eps = eps
        self.stats = RunningStats(())
        self.ret = np.zeros(num_envs)
        self.is_identity = scale == 1.0 and not normalize and clip is None

    def __call__(self, reward: Array, done: Array) -> Array:
        """Rewards (N,) for learning; the statistics follow the discounted return of each env."""
        if self.is_identity:
            return reward
        reward = reward * self.scale
        if self.normalize:
            self.ret = self.ret * self.gamma + reward
            self.stats.update(self.ret)
            reward = reward / self._std()
            self.ret[done] = 0
        return np.clip(reward, *self.bounds) if self.bounds else reward

    def _std(self) -> float:
        """Running std of the return; one imagined return of variance 1 keeps the first rewards from being blown up."""
        count = self.stats.count
        return float(np.sqrt((self.stats.var * count + 1) / (count + 1) + self.eps))

    def state_dict(self) -> dict[str, Any]:
        """Statistics and running returns."""
        return {"stats": self.stats.state_dict(), "ret": self.ret.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.stats.load_state_dict(state["stats"])
        self.ret = np.array(state["ret"])
