"""Videos of episodes: readable, complete, never half-written, and unnoticed by training."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from PIL import Image, ImageSequence

import slm_lab
from slm_lab.audit.difference import find_difference
from slm_lab.cli.main import main
from slm_lab.env import render
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import EnvSettings
from slm_lab.experiment import filming, video
from slm_lab.experiment.control import Session
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import enjoy
from slm_lab.experiment.video import write_video
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError, LabError, VideoError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec


def tiny(name: str = "CartPole-v1", **meta: Any) -> Spec:
    return make_tiny_spec(env={"name": name, "max_frame": 1200}, meta=meta)


def read_mp4(path: Path) -> tuple[dict[str, Any], list[Array]]:
    """What the file says of itself, and its pictures."""
    frames = imageio_ffmpeg.read_frames(path)
    facts = next(frames)
    width, height = facts["size"]
    return facts, [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]


def noise(num_frame: int, shape: tuple[int, int] = (32, 48)) -> list[Array]:
    return list(np.random.default_rng(0).integers(0, 256, (num_frame, *shape, 3), np.uint8))


def write(path: Path, frames: list[Array], fps: float = 10) -> None:
    with write_video(path, fps) as writer:
        for frame in frames:
            writer.add(frame)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class BlankCartPole(CartPoleEnv):
    """Draws as a graphics library without a driver does."""

    def render(self) -> Any:
        return np.zeros((40, 60, 3), np.uint8)


class BrokenCartPole(CartPoleEnv):
    """Cannot be drawn from its fourth picture on."""

    num_drawn = 0

    def render(self) -> Any:
        self.num_drawn += 1
        if self.num_drawn > 3:
            raise RuntimeError("the context is lost")
        return super().render()


@pytest.fixture(autouse=True)
def _envs() -> Iterator[None]:
    kinds: list[Callable[..., gym.Env[Any, Any]]] = [BlankCartPole, BrokenCartPole]
    for kind in kinds:
        gym.register(f"{kind.__name__}-v0", kind, max_episode_steps=100)
    yield
    for kind in kinds:
        del gym.registry[f"{kind.__name__}-v0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one short session."""
    return slm_lab.run(tiny(), tmp_path_factory.mktemp("data")).folder


# --- the file


def test_an_mp4_is_what_browsers_play(tmp_path: Path) -> None:
    path = tmp_path / "new" / "film.MP4"
    # odd sizes: a row and a column are doubled
    frames = noise(7, (33, 47))
    write(path, [np.repeat(frame[:1, :1], 33, 0).repeat(47, 1) for frame in frames[:6]] + [frames[6]], fps=25)
    facts, seen = read_mp4(path)
    assert facts["codec"] == "h264"
    assert facts["pix_fmt"].startswith("yuv420p")
    assert facts["fps"] == 25
    assert facts["size"] == (48, 34)
    assert len(seen) == 7
    # the index comes before the pictures
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    # in order, and in their colours
    for index in range(6):
        assert np.abs(seen[index][10, 10].astype(int) - frames[index][0, 0]).max() < 12


def test_a_gif_has_every_picture_even_equal_ones(tmp_path: Path) -> None:
    still = noise(1)[0] // 64 * 64
    path = tmp_path / "film.gif"
    write(path, [still] * 5, fps=125)
    with Image.open(path) as image:
        assert len(list(ImageSequence.Iterator(image))) == 5
        assert image.info["duration"] == 20
        assert image.info["loop"] == 0
        image.seek(4)
        assert np.abs(np.asarray(image.convert("RGB")).astype(int) - still).mean() < 4


@pytest.mark.parametrize("name", ["film.mp4", "a:b.gif", "per%d.mp4", "-i.mp4"])
def test_odd_names_are_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(name), noise(2))
    assert files(tmp_path) == [name]


@pytest.mark.parametrize("colour", [0, 255])
def test_blank_pictures_are_no_video(colour: int, tmp_path: Path) -> None:
    blank = np.full((32, 48, 3), colour, np.uint8)
    with pytest.raises(VideoError, match=r"all 3 pictures are blank.*MUJOCO_GL=egl or MUJOCO_GL=osmesa"):
        write(tmp_path / "film.mp4", [blank] * 3)
    assert files(tmp_path) == []
    # some envs start with a blank screen
    write(tmp_path / "film.mp4", [blank, blank, noise(1)[0]])
    assert len(read_mp4(tmp_path / "film.mp4")[1]) == 3


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"old")
    seen = []

    def fail_midway() -> None:
        with write_video(path, 10) as writer:
            for frame in noise(5):
                writer.add(frame)
            seen.append(writer)
            assert len(files(tmp_path)) == 2
            raise KeyboardInterrupt

    def change_size() -> None:
        write(path, [noise(1)[0], noise(1, (16, 16))[0]])

    def lose_encoder() -> None:
        with write_video(path, 10) as writer:
            writer.add(noise(1)[0])
            assert writer.process is not None
            writer.process.kill()
            writer.process.wait()
            for frame in noise(200):
                writer.add(frame)

    with pytest.raises(KeyboardInterrupt):
        fail_midway()
    assert seen[0].process.poll() is not None
    with pytest.raises(VideoError, match="change their shape"):
        change_size()
    with pytest.raises(VideoError, match="is not written: ffmpeg ended with code -9"):
        lose_encoder()
    with pytest.raises(VideoError, match="no picture"):
        write(path, [])
    assert files(tmp_path) == ["film.mp4"]
    assert path.read_bytes() == b"old"


def test_what_the_encoder_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(video.ENCODERS, ".mp4", ("-c:v", "nonsense", "-f", "mp4"))
    with pytest.raises(VideoError, match=r"film.mp4 is not written: .+"):
        write(tmp_path / "film.mp4", noise(100))
    assert files(tmp_path) == []


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VideoError, match=r"cannot be written: (Not a directory|File exists)"):
        write(tmp_path / "file" / "film.mp4", noise(1))
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(VideoError, match="that is a folder"):
        write(tmp_path / "folder.mp4", noise(1))


# --- enjoy


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_enjoy_films_every_step_and_the_start_of_each_episode(name: str, trained: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    path = tmp_path / name
    returns = slm_lab.record(trained, path, 2)
    assert returns == enjoy(str(trained), Options(), 2, lambda index, value: None)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    assert files(tmp_path) == [name]
    # CartPole gives 1 for each step
    num_frame = int(sum(returns)) + 2
    if name.endswith("mp4"):
        facts, frames = read_mp4(path)
        assert facts["fps"] == 50
        assert len(frames) == num_frame
        assert all(len(np.unique(frame)) > 10 for frame in frames)
        # the pole has fallen at the end of the first episode, and stands again at the start of the second
        end, begin = frames[int(returns[0])], frames[int(returns[0]) + 1]
        before_end = frames[int(returns[0]) - 1]
        assert np.abs(end.astype(int) - begin).mean() > 1.5 * np.abs(end.astype(int) - before_end).mean() > 0
    else:
        with Image.open(path) as image:
            assert len(list(ImageSequence.Iterator(image))) == num_frame
            assert len(np.unique(np.asarray(image.convert("RGB")))) > 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (BlankCartPole, "pictures are blank"),
        (BrokenCartPole, "'CartPole-v1' cannot be rendered: RuntimeError: the context is lost"),
    ],
)
def test_enjoy_ends_with_one_line_when_nothing_can_be_drawn(
    kind: type[CartPoleEnv], message: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym.registry["CartPole-v1"], "entry_point", kind)
    with pytest.raises(LabError, match=message):
        slm_lab.record(trained, tmp_path / "film.mp4")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["enjoy@{folder}", "--video", "film.avi"], "video 'film.avi': a name ending in .mp4 or .gif expected"),
        (["enjoy@{folder}", "--video", "film"], "a name ending in .mp4 or .gif expected"),
        (["enjoy@{folder}", "--video", "film.mp4", "--render"], "--render and --video exclude each other"),
        (["enjoy@{folder}", "--render"], "no window can be opened"),
        (["ppo_cartpole", "train", "--render"], "no window can be opened"),
        (["ppo_cartpole", "train", "--video", "film.mp4"], "--video works with enjoy@DIR, not with train"),
        (["ppo_cartpole", "train", "--episodes", "3"], "--episodes works with enjoy@DIR, not with train"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_played(
    arguments: list[str],
    message: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "argv", ["slm-lab", "run", *(word.format(folder=trained) for word in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    out, error = capsys.readouterr()
    assert message in error
    assert error.count("\n") == 1
    assert "total_reward" not in out
    assert files(tmp_path) == []


# --- while training


def run_session(spec: Spec, folder: RunFolder, should_stop: Callable[[], bool] = lambda: False) -> Session:
    session = Session(spec, folder, should_stop=should_stop)
    session.run()
    return session


def test_training_films_at_its_cadence_and_does_not_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filming, "MAX_STEP", 8)
    plain, filmed = RunFolder(tmp_path / "plain", "tiny"), RunFolder(tmp_path / "filmed", "tiny")
    evaluated: dict[str, Any] = {"rigorous_eval": 2, "eval_frequency": 400, "log_frequency": 200}
    run_session(tiny(**evaluated), plain)
    run_session(tiny(**evaluated, video_frequency=500), filmed)
    assert find_difference(plain.path, filmed.path, plain.name) is None
    assert not (plain.path / "video").exists()
    assert files(filmed.path / "video") == ["tiny_t0_s0_f1000.mp4", "tiny_t0_s0_f500.mp4"]
    first, second = (read_mp4(filmed.video_file(0, 0, frame))[1] for frame in (500, 1000))
    # the start and 8 steps of an episode that goes on; both videos have the same start
    assert len(first) == len(second) == 9
    assert np.array_equal(first[0], second[0])


@pytest.mark.slow
def test_training_does_not_notice_that_mujoco_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("MUJOCO_GL", render.find_gl_backend())
    except EnvError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(filming, "MAX_STEP", 5)
    changes = {"env.name": "Hopper-v5", "env.max_frame": 6000, "agent.algorithm.training_epoch": 1}
    spec = load_spec("ppo_pendulum", overrides=changes).spec.replace(meta={"rigorous_eval": 1, "eval_frequency": 3000})
    plain, filmed = RunFolder(tmp_path / "plain", spec.name), RunFolder(tmp_path / "filmed", spec.name)
    run_session(spec, plain)
    run_session(spec.replace(meta={"video_frequency": 1500}), filmed)
    assert find_difference(plain.path, filmed.path, plain.name) is None
    assert len(files(filmed.path / "video")) == 4


def test_other_sessions_film_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "tiny")
    Session(tiny(video_frequency=500), folder, session=1).run()
    assert not (tmp_path / "video").exists()


@pytest.mark.parametrize("name", ["BlankCartPole-v0", "BrokenCartPole-v0", "probe/ConstantReward-v0"])
def test_a_failing_renderer_is_one_warning_and_training_goes_on(name: str, tmp_path: Path, warnings: list[str]) -> None:
    folder = RunFolder(tmp_path, "tiny")
    session = run_session(tiny(name, video_frequency=200), folder)
    assert session.frame == 1200
    assert len(warnings) == 1
    assert warnings[0].startswith("No video at frame 200, and no further tries: ")
    assert not (tmp_path / "video").exists() or files(tmp_path / "video") == []


def test_a_stop_does_not_wait_for_a_video(tmp_path: Path, warnings: list[str]) -> None:
    folder = RunFolder(tmp_path, "tiny")
    is_filming: list[bool] = []

    def should_stop() -> bool:
        if any(tmp_path.glob("video/.*.tmp")):
            is_filming.append(True)
        return bool(is_filming)

    session = run_session(tiny(video_frequency=500), folder, should_stop)
    assert session.frame == 500
    assert warnings == []
    assert files(tmp_path / "video") == []
    # continued, the next video comes at its frame
    assert run_session(tiny(video_frequency=500), folder).frame == 1200
    assert files(tmp_path / "video") == ["tiny_t0_s0_f1000.mp4"]


def test_a_long_episode_is_not_held_in_memory(tmp_path: Path) -> None:
    """Pictures go to the encoder as they come: the writer keeps none."""
    env = build_vec_env(EnvSettings("CartPole-v1", 1), render_mode="rgb_array")
    env.reset()
    with write_video(tmp_path / "film.mp4", env.render_fps) as writer:
        for _ in range(3):
            writer.add(env.render())
        assert not any(isinstance(value, (list, np.ndarray)) for value in vars(writer).values())
    env.close()
