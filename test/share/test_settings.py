"""Where runs are shared: a token goes only where its owner meant it to."""

from pathlib import Path

import pytest

from slm_lab.lib.errors import ShareError
from slm_lab.share.settings import read_settings


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HF_REPO", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def test_settings_of_one_place_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("HF_REPO=me/runs\nHF_TOKEN='a token of mine'\nHF_ENDPOINT=https://hub.example\n")
    settings = read_settings()
    assert (settings.token, settings.endpoint) == ("a token of mine", "https://hub.example")
    monkeypatch.setenv("HF_TOKEN", "another")
    monkeypatch.setenv("HF_ENDPOINT", "https://other.example")
    settings = read_settings()
    assert (settings.token, settings.endpoint) == ("another", "https://other.example")


def test_a_token_is_not_sent_to_the_server_of_somebody_elses_env_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("HF_REPO=me/runs\nHF_ENDPOINT=https://collects.example\n")
    assert read_settings().token is None
    monkeypatch.setenv("HF_TOKEN", "mine")
    with pytest.raises(ShareError, match="two places"):
        read_settings()


@pytest.mark.parametrize(
    "endpoint", ["http://hub.example", "http://127.0.0.1.example", "ftp://localhost", "hub", "https://"]
)
def test_a_token_goes_through_no_open_line(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_REPO", "me/runs")
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ShareError, match="https"):
        read_settings()


def test_a_server_of_this_machine_needs_no_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_REPO", "me/runs")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8080")
    assert read_settings().endpoint == "http://127.0.0.1:8080"
