"""Videos during training: a deterministic episode at intervals, always from the same start, in a separate env."""

from collections.abc import Callable
from pathlib import Path

import torch
from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.env.vec_env import VecEnv
from slm_lab.experiment.build import VIDEO_ENV, build_env
from slm_lab.experiment.play import film_episodes
from slm_lab.experiment.video import write_video
from slm_lab.lib.due import Due
from slm_lab.spec.schema import Spec

# longest part of the episode that a video shows
MAX_STEP = 1000


class Filming:
    """Films the agent of a session; if rendering fails, training continues without videos."""

    def __init__(self, spec: Spec, agent: Agent, session: int) -> None:
        self.spec = spec
        self.agent = agent
        self.session = session
        self.due = Due(spec.meta.video_frequency) if spec.meta.video_frequency and session == 0 else None
        self.env: VecEnv | None = None

    def film(self, path: Path, frame: int, should_stop: Callable[[], bool]) -> None:
        """Write a video of one episode."""
        try:
            if self.env is None:
                cpu = torch.device("cpu")
                self.env = build_env(self.spec, VIDEO_ENV, self.session, 1, cpu, render_mode="rgb_array")
            with write_video(path, self.env.render_fps) as video:

                def is_over() -> bool:
                    if should_stop():
                        # only seconds are left to save and end
                        video.discard()
                    return video.is_discarded or video.num_frame > MAX_STEP

                for _ in film_episodes(self.env, self.agent, 1, video.add, is_over):
                    pass
        except Exception as error:  # of any library that renders
            self.due = None
            logger.warning(f"No video at frame {frame}, and no further tries: {error}")

    def close(self) -> None:
        """Close the env."""
        if self.env is not None:
            self.env.close()
