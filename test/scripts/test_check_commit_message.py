"""The commit-msg hook accepts conventional commits and names what is wrong with the rest."""

from pathlib import Path

import pytest
from check_commit_message import TYPES, find_problem, main


@pytest.mark.parametrize("kind", TYPES)
def test_accepts_every_type(kind: str) -> None:
    assert find_problem(f"{kind}: say what changed") is None


@pytest.mark.parametrize(
    "message",
    [
        "feat(agent/net): add a dueling head",
        "fix!: drop the old checkpoint format",
        "refactor(spec)!: rename a field\n\nA body may hold anything: URLs, lists and long long lines.",
        "\n# a comment git leaves in\nfix: first real line counts",
        "Merge branch 'main' into topic",
        'Revert "feat: add a thing"',
        "fixup! feat: add a thing",
        "squash! feat: add a thing",
    ],
)
def test_accepts_well_formed_and_generated_messages(message: str) -> None:
    assert find_problem(message) is None


@pytest.mark.parametrize(
    "message",
    [
        "add a dueling head",
        "feature: unknown type",
        "Feat: capital type",
        "feat:no space",
        "feat: ",
        "feat(): empty scope",
        "feat(a b): scope with a space",
        "feat !: space before the mark",
        "Merged by hand",
        " feat: leading space",
        "added\n\nfeat: a header below the first line does not count",
    ],
)
def test_refuses_other_headers(message: str) -> None:
    problem = find_problem(message)
    assert problem is not None
    assert "type(scope)!: subject" in problem
    assert "\n" not in problem


@pytest.mark.parametrize("message", ["", "\n\n", "# only\n# comments\n"])
def test_refuses_empty_messages(message: str) -> None:
    assert find_problem(message) == "commit message is empty"


def test_length_limit_counts_the_whole_first_line_only() -> None:
    longest = "feat: " + "x" * 65
    assert find_problem(longest) is None
    assert find_problem(f"{longest}\n\n{'body ' * 50}") is None
    assert find_problem(f"{longest}x") == "commit subject line must stay under 72 characters, this one has 72"


def test_main_reports_one_line_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("oops\n", encoding="utf-8")
    assert main([str(message)]) == 1
    assert capsys.readouterr().err.count("\n") == 1

    message.write_text("fix: repair it\n", encoding="utf-8")
    assert main([str(message)]) == 0
    assert capsys.readouterr().err == ""
