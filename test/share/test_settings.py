"""Where runs are shared: a token goes only where its owner meant it to."""

from pathlib import Path

import pytest

from slm_lab.lib.errors import ShareError
from slm_lab.share.settings import read_settings


def test_a_token_goes_only_to_a_server_that_is_named_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("HF_REPO=me/runs\nHF_TOKEN='a token of mine'\nHF_ENDPOINT=https://hub.example\n")
    settings = read_settings()
    assert (settings.token, settings.endpoint) == ("a token of mine", "https://hub.example")
    monkeypatch.setenv("HF_TOKEN", "another")
    # a `.env` may come with somebody else's folder
    with pytest.raises(ShareError, match="two places"):
        read_settings()
    monkeypatch.setenv("HF_ENDPOINT", "https://other.example")
    settings = read_settings()
    assert (settings.token, settings.endpoint) == ("another", "https://other.example")


@pytest.mark.parametrize(
    "endpoint", ["http://hub.example", "http://127.0.0.1.example", "ftp://localhost", "hub", "https://"]
)
def test_a_token_goes_through_no_open_line(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_REPO", "me/runs")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8080")
    # a server of this machine needs no encryption
    assert read_settings().endpoint == "http://127.0.0.1:8080"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ShareError, match="https"):
        read_settings()
