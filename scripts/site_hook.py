"""Hook of mkdocs: pages from outside docs/, and links to files that are no pages."""

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parent.parent
# files beside docs/ that are pages of the site
PAGES = {"README.md": "index.md", "SECURITY.md": "SECURITY.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?(?: '[^']*')?\)")
FILE_NAME = re.compile(r"[\w./]+\.(py|json|yaml|csv)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>', re.S)
DISPLAYS = {"span": "inline", "div": "block"}
# a named function next to a letter or a number, which browsers set without a space between them
FUNCTION = re.compile(
    r"(</m(?:i|n|row|sub|sup|over|frac)>)?(?<!<msup>)(<mi>(?:ln|log|cos|tanh)</mi>)(?=(<m(?:i|n|row|sub|sup|over|frac)\b)?)"
)
SPACE = '<mspace width="0.17em"/>'
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def on_config(config: Any) -> Any:
    """Anchors as GitHub makes them, since the pages are read there too."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand beside docs/, as if they stood in it."""
    for source, uri in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / source).read_text(encoding="utf-8"))
        # the home page has no siblings to list beside it
        head = "---\nhide: [navigation]\n---\n" if uri == "index.md" else ""
        files.append(File.generated(config, uri, content=head + text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to the pages above, or become plain text where the target is no page."""
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda found: _relink(found, page.file.src_uri), part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show without a script."""
    return FORMULA.sub(_to_mathml, html)


def _to_mathml(found: re.Match[str]) -> str:
    math = convert(unescape(found[3]), display=DISPLAYS[found[1]])
    if "\\" in math:
        raise PluginError(f"a formula has a command that is not converted: {found[3]}")
    math = FUNCTION.sub(lambda name: _join(name[1]) + name[2] + (SPACE if name[3] else ""), math)
    # a long formula scrolls in its own box, so that the page does not
    return f'<div class="formula">{math}</div>' if found[1] == "div" else math


def _join(before: str | None) -> str:
    return before + SPACE if before else ""


def _relink(found: re.Match[str], uri: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if "://" in target or target.startswith("mailto:"):
        return found[0]
    folder = posixpath.dirname(uri)
    # generated pages stand beside docs/ in the repository, all others in it
    base = "" if uri in PAGES.values() else posixpath.join("docs", folder)
    path = posixpath.normpath(posixpath.join(base, target))
    if path in PAGES:
        return f"[{text}]({posixpath.relpath(PAGES[path], folder or '.')}{anchor})"
    is_page = not path.startswith("docs/") and uri in PAGES.values() and (ROOT / "docs" / path).exists()
    if path.startswith("docs/") or is_page:
        return found[0]
    if not (ROOT / path).exists():
        # left for mkdocs to report
        return found[0]
    return f"`{text}`" if FILE_NAME.fullmatch(text) else text
