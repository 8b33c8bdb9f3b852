"""The files that pages are made of: the lab's own, and those that reports use too."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response

from slm_lab.results.page import PAGE, SCRIPTS
from slm_lab.results.palette import COLORS

STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# `page.js` is the report's alone
_SHARED = (*SCRIPTS[:-1], "parts.css")


class Assets:
    """All of them, read once; nothing else can be asked for."""

    def __init__(self) -> None:
        files = [*STATIC.iterdir(), *(PAGE / name for name in _SHARED)]
        self._texts = {file.name: file.read_text(encoding="utf-8") for file in files if file.suffix in TYPES}
        self._texts["colors.css"] = write_colors()

    def answer(self, name: str) -> Response:
        """A file by its name."""
        if name not in self._texts:
            raise HTTPException(404, "there is no such file")
        return Response(self._texts[name], media_type=TYPES[Path(name).suffix])


def write_colors() -> str:
    """The palette as variables: by the system's choice of light or dark, or by the user's."""
    light, dark = (";".join(f"--color-{name}:{pair[i]}" for name, pair in COLORS.items()) for i in (0, 1))
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]){{{dark}}} }}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )
