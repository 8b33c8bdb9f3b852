"""Generated pages are current, and hold what they promise."""

from pathlib import Path

import pytest
from write_reference import ROOT, find_commands, pages

from slm_lab.spec.loading import spec_files, spec_names


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return pages()


def test_generated_pages_are_current(generated: dict[Path, str]) -> None:
    stale = [path.name for path, text in generated.items() if path.read_text() != text]
    assert not stale, "run: uv run python scripts/write_reference.py"


def test_every_option_of_every_command_is_on_the_page(generated: dict[Path, str]) -> None:
    sections = generated[ROOT / "docs" / "CLI.md"].split("\n### slm-lab ")
    texts = {section.splitlines()[0]: section for section in sections[1:]}
    commands = list(find_commands())
    assert len(commands) > 20
    assert {"run", "spec check", "env list", "verify", "bench status"} <= set(texts)
    for _, words, command in commands:
        options = [name for param in command.params for name in param.opts if name.startswith("-")]
        missing = [name for name in options if f"`{name}`" not in texts[words]]
        assert not missing, words


def test_every_shipped_spec_is_on_the_page(generated: dict[Path, str]) -> None:
    text = generated[ROOT / "docs" / "SPECS.md"]
    names = [name for path in spec_files() for name in spec_names(path)]
    twins = {name for name in names if name.endswith("_arc") and name.removesuffix("_arc") in names}
    missing = [name for name in names if name not in twins and f"| `{name}` |" not in text]
    assert not missing
    assert text.count(" | yes | ") == len(twins)


def test_results_of_the_readme_have_numbers(generated: dict[Path, str]) -> None:
    assert "| CartPole-v1 | " in generated[ROOT / "README.md"]
