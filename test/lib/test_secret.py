"""What `.env` may look like, and which secrets are kept out of text."""

import io
import os
import tracemalloc
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.lib.errors import LabError, SpecError
from slm_lab.lib.log import log_to, setup_console
from slm_lab.lib.secret import (
    MASK,
    MAX_PATH,
    SHAPES,
    find_secret,
    get_setting,
    known_secrets,
    read_env_file,
    redact,
    search_file,
)
from slm_lab.spec.loading import load_spec

# put together here, so that no scanner takes this file for a leak
TOKENS = {
    "Hugging Face": "hf_" + "aB3" * 12,
    "GitHub": "ghp_" + "aB3" * 12,
    "GitHub, fine-grained": "github_pat_" + "aB3_" * 12,
    "GitLab": "glpat-" + "aB-3" * 6,
    "OpenAI and others": "sk-" + "proj-" + "aB3" * 12,
    "AWS": "AKIA" + "ABCD2345" * 2,
    "Slack": "xoxb-" + "123-abc" * 4,
    "Google": "AIza" + "aB3_-" * 7,
    "PyPI": "pypi-" + "aB3" * 12,
    "JSON web token": ".".join(("eyJ" + "aB3" * 4, "eyK" + "aB3" * 4, "aB3" * 6)),
    "authorization header": "Bearer " + "aB3." * 6,
    "password in a URL": "://" + "me:correct-horse@",
    "private key": "-----BEGIN " + "RSA PRIVATE KEY-----\nabc\n-----END " + "RSA PRIVATE KEY-----",
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)


def test_every_shape_has_an_example() -> None:
    assert set(TOKENS) == set(SHAPES)
    assert len(TOKENS) >= 8


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_is_known_by_its_shape(kind: str) -> None:
    text = redact(f"calling with {TOKENS[kind]}, then on")
    assert text == f"calling with {MASK}, then on"


@pytest.mark.parametrize(
    "text", ["task-scheduling-of-a-long-name", "ppo_cartpole_2026_01_01_120000", "hf_hub is a word", "a bearer of news"]
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text


def test_values_of_secret_variables_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct horse")
    monkeypatch.setenv("MY_KEYBOARD", "qwertyuiop")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    Path(".env").write_text("DB_SECRET='battery staple'\n")
    assert redact("correct horse, battery staple, qwertyuiop, abc") == f"{MASK}, {MASK}, qwertyuiop, abc"
    assert "MY_PASSWORD of the environment" in known_secrets()


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HF_TOKEN_WRITE", "GITHUB_PAT", "DB_PASS", "API_KEY_2"),
        *("api_key2", "SMTP_PASSPHRASE", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "SERVICE_CREDENTIALS"),
        *("OPENAI_APIKEY", "accessToken", "SECRET_KEY_BASE", "PASSWORD"),
        *("SECRETKEY", "AWS_SECRETKEY", "secretKey", "awsSecretAccessKey", "S3_SECRETACCESSKEY"),
        *("OPENAIKEY", "WANDBKEY", "APPKEY", "DEPLOYKEY", "SNAPSHOTKEY", "deployKey2", "APIKeyId"),
        *("secretKeyBase", "hfTokenWrite", "githubPat", "dbPass", "passWd", "my-api-key", "service.token.write"),
    ],
)
def test_a_secret_is_known_by_a_part_of_its_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "correct horse")
    assert redact("a correct horse") == f"a {MASK}"


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "PYTHONPATH", "MY_PATTERN", "KEYBOARD", "MONKEY"),
        *("COMPASS", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "GIT_ASKPASS"),
        *("DISPATCH", "BYPASS_CACHE", "WEB_TOKEN_FILE", "HF_TOKEN_PATH", "OAUTH_TOKEN_URL"),
        *("TURKEY", "DONKEY_2", "HOCKEY", "JOCKEY", "WHISKEY", "HOTKEY", "hotKey", "KEY_BINDINGS", "keyBindings"),
        *("monkeyCount", "CompassHeading", "maxTokens", "tokenFile", "secretKeyPath", "FFMPEG_2PASS"),
    ],
)
def test_an_ordinary_name_holds_no_secret(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "correct horse")
    assert redact("a correct horse") == "a correct horse"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to postgres://me:correct@db.example:5432/x", f"to postgres{MASK}db.example:5432/x"),
        ("redis://:correct@db", f"redis{MASK}db"),
        *[
            (f"to postgres://me:{password}@db/x now", f"to postgres{MASK}db/x now")
            for password in (
                *("p@ssw0rd-long", "p@ss/w@rd", "@t-the-start", "at-the-end@", "with:colon"),
                *("sl/ash", "/slash", 'quo"te', "quo'te", "bra{ce", "bra}ce", "ang<le", "ang>le"),
                *("{braced", "{braced}-and-more", "80-and-more", "808080/x"),
            )
        ],
        ("a://me:correct@b,c://me:p@ssword@d e@f", f"a{MASK}b,c{MASK}d e@f"),
        ("http://proxy:3128/http://me:correct@b", f"http://proxy:3128/http{MASK}b"),
        ('{"a":"b://me:correct@c","d":"e@f"}', f'{{"a":"b{MASK}c","d":"e@f"}}'),
        *[
            (text, text)
            for text in (
                "http://host:8080/path user@example.com",
                "http://host:8080/path?mail=user@example.com",
                "postgres://user:{password}@host",
                "postgres://user:{{password}}@host",
                "postgres://user:${PASSWORD}@host",
                "postgres://user:<password>@host",
                "http://localhost:{port}/a@b",
                "http://[::1]:8080/a@b",
                "file://C:/a@b",
                "redis://user:@a,redis://user:@b",
                '{"a":"http://host:8080","b":"c@d"}',
                "{'http://a:b':'c@d'}",
                "http://localhost:8080/a@b",
                "ssh://git@host.example:22/x",
                "https://{user}:{password}@host",
                '["http://a","b:c@d"]',
                "see http://host: mail me@host",
            )
        ],
    ],
)
def test_a_password_in_a_url_is_known(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert (find_secret([text]) is None) == (text == shown)


def test_a_secret_inside_another_leaves_nothing_of_the_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "12345678")
    monkeypatch.setenv("B_TOKEN", "12345678-and-more")
    assert redact("x 12345678-and-more y") == f"x {MASK} y"


def test_env_file_with_comments_and_quotes() -> None:
    Path(".env").write_text(
        "# a comment\n\nA=1\n"
        'export B = two words # said so\nC=\'single # kept\'\nD="double \\"x\\"" # gone\nE=a#b\nF=\n'
    )
    assert dict(read_env_file()) == {
        "A": "1",
        "B": "two words",
        "C": "single # kept",
        "D": 'double "x"',
        "E": "a#b",
        "F": "",
    }


def test_the_environment_wins_and_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_TWICE", "here")
    monkeypatch.delenv("SET_ONCE", raising=False)
    Path(".env").write_text("SET_TWICE=there\nSET_ONCE=there\n")
    assert get_setting("SET_TWICE") == "here"
    assert get_setting("SET_ONCE") == "there"
    assert get_setting("SET_NEVER") is None
    assert "SET_ONCE" not in os.environ


@pytest.mark.parametrize("line", ["A='open", "hf_secret without a name", 'A="x" y', "1A=x"])
def test_a_bad_line_is_named_but_not_shown(line: str) -> None:
    Path(".env").write_text(f"OK=1\n{line}\n")
    with pytest.raises(LabError, match="line 2") as caught:
        read_env_file()
    assert "hf_secret" not in str(caught.value)
    # a broken file does not stop the log
    assert redact("text") == "text"


def test_a_changed_env_file_is_read_again() -> None:
    Path(".env").write_text("A=1\n")
    assert read_env_file()["A"] == "1"
    Path(".env").write_text("A=22\n")
    assert read_env_file()["A"] == "22"


def test_the_log_shows_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "plain-looking-value")
    for log_format in ("text", "json"):
        setup_console("INFO", log_format)
        with log_to(tmp_path / "demo.log", "INFO"):
            for token in (*TOKENS.values(), "plain-looking-value"):
                logger.bind(detail=token).info(f"sent {token}")
                try:
                    raise ValueError(f"refused {token}")
                except ValueError:
                    logger.exception("failed")
    setup_console("INFO")
    for text in (capsys.readouterr().err, (tmp_path / "demo.log").read_text()):
        assert "sent [secret]" in text
        assert "refused [secret]" in text
        for token in (*TOKENS.values(), "plain-looking-value"):
            assert token not in text


@pytest.mark.parametrize("token", TOKENS.values())
def test_a_spec_with_a_secret_is_refused_with_its_path(token: str) -> None:
    with pytest.raises(SpecError, match=r"env.kwargs.login.*environment variable") as caught:
        load_spec("ppo_cartpole", overrides={"env.kwargs": {"login": f"https://me:{token}@host"}})
    assert token not in str(caught.value)


def test_a_spec_with_a_known_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    with pytest.raises(SpecError, match=r"agent.name holds the value of WANDB_API_KEY"):
        load_spec("ppo_cartpole", overrides={"agent.name": "0123456789abcdef"})


def test_a_secret_as_a_key_is_found_and_not_told() -> None:
    token = TOKENS["GitHub"]
    found = find_secret({"env": [{"a": {token: 1}}]})
    assert found is not None
    assert found[0] == f"env[0].a.{MASK}"


def test_a_large_spec_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count() -> dict[str, str]:
        calls.append(1)
        return {}

    monkeypatch.setattr("slm_lab.lib.secret.known_secrets", count)
    data = {f"k{index}": "text" for index in range(1000)}
    assert find_secret(data) is None
    assert len(calls) == 1
    # a few times where there is a secret, even at its end
    assert find_secret(data | {"last": TOKENS["GitHub"]}) is not None
    assert len(calls) < 10


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("shift", [-60, -8, -1, 0, 1])
def test_a_secret_across_pieces_of_a_file_is_found(monkeypatch: pytest.MonkeyPatch, kind: str, shift: int) -> None:
    monkeypatch.setattr("slm_lab.lib.secret.PIECE", 200)
    monkeypatch.setattr("slm_lab.lib.secret.OVERLAP", 100)
    for lead in (200, 400, 1000):
        text = ("1.5,2.5\n" * 200)[: lead + shift - 1] + "\n" + TOKENS[kind] + "\n" + "3.5\n" * 100
        line = text[: lead + shift].count("\n") + 1
        found = search_file(io.BytesIO(text.encode()), is_text=True)
        assert found == (line, f"what looks like a secret ({kind})")


def test_a_word_that_is_cut_between_pieces_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slm_lab.lib.secret.PIECE", 50)
    monkeypatch.setattr("slm_lab.lib.secret.OVERLAP", 40)
    for lead in range(120):
        # within a word, too long to be one, and a placeholder
        for word in ("x" + TOKENS["Hugging Face"], TOKENS["AWS"] + "ABC", "redis://me:{password}@host"):
            assert search_file(io.BytesIO(f"{' ' * lead}{word} {' ' * 99}".encode()), is_text=True) is None


def test_a_large_file_is_searched_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "correct horse")
    path = tmp_path / "large"
    with path.open("wb") as file:
        # one line without an end
        for _ in range(40):
            file.write(b"ab:/" * 250_000)
        file.write(b"correct horse")
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            found = search_file(file, is_text=False)
        with path.open("rb") as file:
            assert search_file(file, is_text=True) == found
        assert found == (1, "the value of MY_TOKEN of the environment")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_the_path_of_a_secret_fits_a_line() -> None:
    token = TOKENS["GitHub"]
    found = find_secret({"a\x1b[2J\n": [{"b": token}]})
    assert found is not None
    assert found[0] == "a\\x1b[2J\\n[0].b"
    found = find_secret({"k" * 20_000: {token: "x"}})
    assert found is not None
    assert len(found[0]) == MAX_PATH
    assert found[0].startswith("...k")
    assert found[0].endswith(f"k.{MASK}")


def test_the_first_secret_of_several_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "plain-looking")
    one, other = {"a": "b\0c", "d": ["x", "is plain-looking"]}, {"e": TOKENS["GitHub"]}
    assert find_secret(one | other) == ("d[1]", "the value of MY_TOKEN of the environment")
    assert find_secret(other | one) == ("e", "what looks like a secret (GitHub)")


def test_texts_side_by_side_make_no_secret() -> None:
    assert find_secret({"a": ["Bearer ", TOKENS["GitHub"][4:]]}) is None
    assert find_secret(["http://host:8", "me@host"]) is None


def test_a_json_web_token_is_looked_for_only_up_to_where_the_next_may_begin() -> None:
    # else a text made of beginnings would be read to its end from each of them
    token = TOKENS["JSON web token"]
    start = "eyJ" + "a" * 20
    assert redact(f"x-{start}-{start}-{token}") == f"x-{start}-{start}-{MASK}"
    # what is too short to begin another is part of it
    assert redact(f"{start}-eyJ.{token.partition('.')[2]}") == MASK


def test_a_token_within_a_word_is_none() -> None:
    assert find_secret(["shf_" + "a" * 30, "xgithub_pat_" + "a" * 30, "forbearer " + "a" * 30]) is None
