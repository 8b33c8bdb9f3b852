"""Videos of episodes: pictures are streamed to an encoder, and a file appears only if it is complete."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import imageio_ffmpeg
import numpy as np

from slm_lab.env.render import GL_HINT
from slm_lab.lib.array import Array
from slm_lab.lib.errors import VideoError
from slm_lab.lib.io import move_into_place, temporary_name

# browsers play H.264 in yuv420p; with faststart they can begin before the download is complete
MP4 = ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4")
# a palette for each picture: one for all of them would need them all in memory
GIF = (
    "-filter_complex",
    "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none",
    "-f",
    "gif",
)
ENCODERS = {".mp4": MP4, ".gif": GIF}
# GIFs count in hundredths of a second, and viewers slow down frames shorter than two
MAX_GIF_FPS = 50.0
ENCODER_SECONDS = 600.0


def check_video_path(path: Path) -> None:
    """Refuse a file that no encoder can write, before anything is played."""
    if path.suffix.lower() not in ENCODERS:
        raise VideoError(f"video '{path}': a name ending in {' or '.join(ENCODERS)} expected")
    if path.is_dir():
        raise VideoError(f"video '{path}': that is a folder")


@contextmanager
def write_video(path: Path, fps: float) -> Iterator["VideoWriter"]:
    """Yield a writer that takes pictures one by one; the file appears at the end, and only without errors."""
    check_video_path(path)
    # a file, because many messages could fill a pipe
    with tempfile.TemporaryFile() as messages:
        video = VideoWriter(path, fps, messages)
        try:
            yield video
            if not video.is_discarded:
                video.finish()
        finally:
            video.discard()


class VideoWriter:
    """The encoder of one video; use `write_video`."""

    def __init__(self, path: Path, fps: float, messages: IO[bytes]) -> None:
        self.path = path
        self.fps = min(fps, MAX_GIF_FPS) if path.suffix.lower() == ".gif" else fps
        self.temporary = temporary_name(path)
        self.num_frame = 0
        self.shape: tuple[int, ...] = ()
        # whether every picture so far has a single colour
        self.is_blank = True
        self.is_discarded = False
        self.process: subprocess.Popen[bytes] | None = None
        self.messages = messages

    def add(self, frame: Array) -> None:
        """Append a picture (height, width, 3) of 8 bits."""
        if self.process is None:
            self.shape = frame.shape
            self.process = self._start()
        if frame.shape != self.shape:
            raise VideoError(f"{self.path}: the pictures change their shape from {self.shape} to {frame.shape}")
        if self.is_blank:
            self.is_blank = bool((frame == frame[0, 0]).all())
        # yuv420p stores colours for pairs of pixels, so an odd last row or column is doubled
        height, width = frame.shape[:2]
        if height % 2 or width % 2:
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(frame.tobytes())
        except BrokenPipeError:
            raise self._failure() from None
        self.num_frame += 1

    def discard(self) -> None:
        """Stop the encoder and delete the temporary file; a finished video stays."""
        self.is_discarded = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        # it may not have been created
        with suppress(FileNotFoundError, NotADirectoryError):
            self.temporary.unlink()

    def finish(self) -> None:
        """Wait for the encoder, check its result, and move the file into place."""
        if self.process is None:
            raise VideoError(f"{self.path}: there is no picture to write")
        if self.is_blank:
            raise VideoError(
                f"{self.path} is not written, because all {self.num_frame} pictures are blank: "
                f"the graphics library of the env draws nothing here; {GL_HINT}"
            )
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            code = self.process.wait(ENCODER_SECONDS)
        except BrokenPipeError:
            raise self._failure() from None
        except subprocess.TimeoutExpired:
            raise VideoError(f"{self.path} is not written: ffmpeg does not end") from None
        if code != 0:
            raise self._failure()
        move_into_place(self.temporary, self.path)

    def _start(self) -> subprocess.Popen[bytes]:
        height, width = (size + size % 2 for size in self.shape[:2])
        source = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self.fps:g}", "-i", "-")
        encoder = ENCODERS[self.path.suffix.lower()]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # gives a better error than the encoder if the folder cannot be written to
            self.temporary.touch(exist_ok=False)
        except OSError as error:
            raise VideoError(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            program = imageio_ffmpeg.get_ffmpeg_exe()
        except RuntimeError:
            raise VideoError("no ffmpeg for this system comes with imageio-ffmpeg; install ffmpeg") from None
        return subprocess.Popen(
            # one thread: sessions share the cores; "file:" keeps a colon in the name from meaning a protocol
            [program, "-loglevel", "error", "-y", *source, "-an", "-threads", "1", *encoder, f"file:{self.temporary}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.messages,
            # in its own process group: Ctrl-C reaches only the lab, which stops the encoder
            start_new_session=True,
        )

    def _failure(self) -> VideoError:
        assert self.process is not None
        code = self.process.wait()
        self.messages.seek(0)
        lines = self.messages.read().decode(errors="replace").splitlines()
        return VideoError(f"{self.path} is not written: {lines[-1] if lines else f'ffmpeg ended with code {code}'}")
