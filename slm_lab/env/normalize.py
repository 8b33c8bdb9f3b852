"""Running normalisers of observations and rewards; part of the agent's state, frozen in evaluation."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.device import as_tensor, has_float64, upload
from slm_lab.lib.errors import CheckpointError


class RunningStats:
    """Mean and variance of everything seen, merged batch by batch (Chan et al. 1979).

    They are numpy arrays, or tensors after the first batch of tensors, on its device.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean: Any = np.zeros(shape)
        self.var: Any = np.ones(shape)
        self.count = 0.0

    def update(self, batch: Array | Tensor) -> None:
        """Merge a batch (B, ...)."""
        count = len(batch)
        mean: Any
        var: Any
        if isinstance(batch, Tensor) or isinstance(self.mean, Tensor):
            wide = torch.as_tensor(batch).double()
            self.mean, self.var = (torch.as_tensor(part, device=wide.device) for part in (self.mean, self.var))
            mean, var = wide.mean(0), wide.var(0, correction=0)
        else:
            mean, var = batch.mean(0), batch.var(0)
        total = self.count + count
        if self.count:
            delta = mean - self.mean
            square = self.var * self.count + var * count + delta**2 * self.count * count / total
            self.mean = self.mean + delta * count / total
            self.var = square / total
        else:
            self.mean, self.var = (
                (mean, var) if isinstance(mean, Tensor) else (np.array(mean, float), np.array(var, float))
            )
        self.count = total

    def state_dict(self) -> State:
        """Mean, variance and count, always as arrays, because numpy makes scalars of 0-dimensional results."""
        return {"mean": np.array(_to_numpy(self.mean)), "var": np.array(_to_numpy(self.var)), "count": self.count}

    def load_state_dict(self, state: State) -> None:
        """Resume from saved statistics."""
        shape = tuple(self.mean.shape)
        self.mean, self.var = _take(state["mean"], shape), _take(state["var"], shape)
        self.count = float(state["count"])


def _to_numpy(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def _take(value: Any, shape: tuple[int, ...]) -> Array:
    """A copy of saved numbers, whose shape must fit."""
    array = np.array(value)
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError("statistics of observations or rewards of another shape or type")
    return array


class ObsEncoder:
    """Raw observations as the nets see them: shifted and scaled if they are normalised, clipped, on the device."""

    def __init__(
        self,
        shape: tuple[int, ...],
        normalize: bool,
        clip: float | None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        eps: float = 1e-8,
    ) -> None:
        self.stats = RunningStats(shape) if normalize else None
        self.clip = clip
        self.dtype = dtype
        self.device = device
        self.eps = eps
        self.is_host = device is None or device.type == "cpu"
        # mean and log std when the shift was last measured
        self._mark: tuple[Array, Array] | None = None
        # mean and variance on a GPU, and the mean from which they were uploaded
        self._there: tuple[Tensor, Tensor] | None = None
        self._source: Any = None

    def __call__(self, obs: Array | Tensor) -> Tensor:
        """Encode a batch; tensors are computed on their device, with the same bits as arrays."""
        stats: Any = self.stats
        if stats is None:
            if self.clip is not None:
                obs = torch.as_tensor(obs).clamp(-self.clip, self.clip)
        elif isinstance(obs, Tensor) or isinstance(stats.mean, Tensor):
            obs = torch.as_tensor(obs)
            mean, var = (stats.mean, stats.var) if self.is_host else self._upload_stats(obs.device)
            if not isinstance(mean, Tensor):
                mean, var = torch.from_numpy(mean), torch.from_numpy(var)
            obs = (obs - mean) / torch.sqrt(var + self.eps)
            obs = obs if self.clip is None else obs.clamp(-self.clip, self.clip)
        else:
            obs = (obs - stats.mean) / np.sqrt(stats.var + self.eps)
            obs = obs if self.clip is None else np.clip(obs, -self.clip, self.clip)
        tensor = as_tensor(obs).to(self.dtype)
        return tensor if self.device is None or self.is_host else upload(tensor, self.device)

    def _upload_stats(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and variance on the device of a batch; uploaded to a GPU only when they have changed."""
        stats: Any = self.stats
        mean, var = torch.as_tensor(stats.mean), torch.as_tensor(stats.var)
        if device.type == "cpu":
            return mean, var
        if not has_float64(device):
            mean, var = mean.float(), var.float()
        # updates and `load_state_dict` replace the arrays
        if self._there is None or self._source is not stats.mean:
            self._there, self._source = (upload(mean, device), upload(var, device)), stats.mean
        return self._there

    def measure_shift(self) -> float:
        """How far the statistics have moved since the last call.

        This is the change of the mean in stds, combined with the change of the log std, as a root mean square over the
        numbers of an observation.
        """
        if self.stats is None or not self.stats.count:
            return math.nan
        mean, log_std = _to_numpy(self.stats.mean), 0.5 * np.log(_to_numpy(self.stats.var) + self.eps)
        last, self._mark = self._mark, (mean, log_std)
        if last is None:
            return math.nan
        square = ((mean - last[0]) / np.exp(log_std)) ** 2 + (log_std - last[1]) ** 2
        return float(np.sqrt(square.mean()))

    def state_dict(self) -> State | None:
        """The statistics, and those at the last measured shift; None if nothing is normalised."""
        if self.stats is None:
            return None
        mark = None if self._mark is None else {"mean": self._mark[0].copy(), "log_std": self._mark[1].copy()}
        return {**self.stats.state_dict(), "mark": mark}

    def load_state_dict(self, state: State | None) -> None:
        """Resume from a saved state."""
        if (self.stats is None) != (state is None):
            raise ValueError("observations are normalised in one of the two alone")
        if self.stats is None or state is None:
            return
        self.stats.load_state_dict(state)
        # states of older versions have none
        mark = state.get("mark")
        shape = tuple(self.stats.mean.shape)
        self._mark = None if mark is None else (_take(mark["mean"], shape), _take(mark["log_std"], shape))


class MaskedStats(RunningStats):
    """Statistics of flat observations without the mask at their end."""

    def update(self, batch: Array | Tensor) -> None:
        super().update(batch[:, : self.mean.shape[0]])


class MaskedEncoder(ObsEncoder):
    """Encodes flat observations, except for the action mask at their end."""

    def __init__(self, shape: tuple[int, ...], *args: Any) -> None:
        super().__init__(shape, *args)
        self.size = shape[0]
        if self.stats is not None:
            self.stats = MaskedStats(shape)

    def __call__(self, obs: Array | Tensor) -> Tensor:
        seen = super().__call__(obs[..., : self.size])
        mask = torch.as_tensor(obs[..., self.size :], dtype=self.dtype)
        return torch.cat([seen, mask if self.is_host else upload(mask, seen.device)], -1)


class RewardScaler:
    """Scales, normalises and clips rewards for learning; scores stay raw.

    The std of returns changes by orders of magnitude while an agent learns, and a replay keeps rewards for a long time.
    So rewards in a replay are normalised when they are sampled, all by the current std.
    """

    def __init__(
        self,
        num_envs: int,
        gamma: float,
        scale: float,
        normalize: bool,
        clip: float | tuple[float, float] | None,
        at_sampling: bool = False,
    ) -> None:
        self.gamma = gamma
        self.scale = scale
        self.normalize = normalize
        self.at_sampling = normalize and at_sampling
        self.bounds = (-clip, clip) if isinstance(clip, (int, float)) else clip
        self.stats = RunningStats(())
        self.ret = np.zeros(num_envs)
        self.is_identity = scale == 1.0 and not normalize and clip is None

    def __call__(self, reward: Array, done: Array) -> Array:
        """Rewards (N,) to store; also updates the statistics of discounted returns."""
        if self.is_identity:
            return reward
        reward = reward * self.scale
        if self.normalize:
            self.ret = self.ret * self.gamma + reward
            self.stats.update(self.ret)
            self.ret[done] = 0
            if self.at_sampling:
                return reward
            reward = reward / self.std
        return np.clip(reward, *self.bounds) if self.bounds else reward

    def finish(self, reward: Tensor) -> Tensor:
        """Sampled rewards, or discounted sums of several, for learning."""
        if not self.at_sampling:
            return reward
        reward = reward / self.std
        return reward.clamp(*self.bounds) if self.bounds else reward

    @property
    def std(self) -> float:
        """Running std of returns, with one extra return of 0, so that the first rewards do not become huge; 1 while all
        returns are 0.
        """
        count, mean, var = self.stats.count, float(self.stats.mean), float(self.stats.var)
        return math.sqrt((var + mean**2 / (count + 1)) * count / (count + 1)) or 1.0

    def state_dict(self) -> State:
        """Statistics and running returns."""
        return {"stats": self.stats.state_dict(), "ret": self.ret.copy(), "at_sampling": self.at_sampling}

    def load_state_dict(self, state: State) -> None:
        """Resume from a saved state."""
        # older versions normalised rewards before storing them, and did not record it
        if self.at_sampling and not state.get("at_sampling", False):
            raise CheckpointError(
                "an older version of the lab filled its replay with normalised rewards, this one normalises them when "
                "they are sampled: train it again with `slm-lab run`"
            )
        self.stats.load_state_dict(state["stats"])
        self.ret = _take(state["ret"], self.ret.shape)
