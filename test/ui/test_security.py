"""Who may ask the server for what, and what hostile run folders can do: nothing."""

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from slm_lab.lib.io import write_json, write_text, write_yaml
from slm_lab.ui.guard import CSRF_HEADER, MAX_BODY
from test.results.sample import HOSTILE, SPEC, make_table, write_run
from test.ui.conftest import Look, Served, serve

SECRET = "the content of a file that is not served"
HTML = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
# a name of a folder may hold anything but a slash
HOSTILE_NAME = "<img src=x onerror=alert(1)> & \"'"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with good and hostile runs, beside files that are none of the server's business."""
    root = tmp_path_factory.mktemp("root")
    data = root / "data"
    (root / "outside").mkdir()
    (root / "outside" / "secret.csv").write_text(SECRET)
    (root / "outside" / "secret_spec.yaml").write_text(SECRET)
    (data / "loose.csv").parent.mkdir()
    (data / "loose.csv").write_text(SECRET)
    write_run(data / "good", {0: make_table()})
    (data / "good" / "other.txt").write_text(SECRET)
    (data / "good" / ".env").write_text(SECRET)
    # a link in a run, a run that is a link, and a folder of a run that is a link
    write_run(data / "linked", {0: make_table()})
    os.symlink(root / "outside" / "secret.csv", data / "linked" / "info" / "demo_t0_s1_session_df_train.csv")
    os.symlink(root / "outside", data / "outside")
    write_run(data / "folder_link", {0: make_table()})
    os.symlink(root / "outside", data / "folder_link" / "log")
    # markup in every text
    spec = {"agent": {"name": HTML, "algorithm": {"name": HTML}}, "env": {"name": HTML, HTML: HTML}}
    hostile = data / HOSTILE_NAME
    write_run(hostile, {0: make_table() | {HTML: make_table()["loss"]}}, spec=spec, provenance={"command": [HTML]})
    (hostile / "log").mkdir()
    (hostile / "log" / "demo.log").write_text(f"{HTML}\n{HOSTILE}\n")
    write_json(hostile / "notes.json", {"tags": [HTML[:40]], "note": HTML})
    (data / "bad\nname").mkdir()
    write_yaml(data / "bad\nname" / "demo_spec.yaml", {"demo": SPEC})
    write_text(data / "broken" / "demo_spec.yaml", "[" * 500)
    (data / "broken" / "info").mkdir()
    (data / "broken" / "info" / "demo_t0_s0_session_df_train.csv").write_text(f"{HTML}\n1\n")
    os.mkfifo(data / "broken" / "info" / "demo_t0_s1_session_df_train.csv")
    return data


@pytest.fixture(scope="module")
def served(data_dir: Path) -> Iterator[Served]:
    with serve(data_dir, has_control=True) as served:
        yield served


@pytest.fixture(scope="module")
def plain(data_dir: Path) -> Iterator[Served]:
    """The same without --control."""
    with serve(data_dir) as served:
        yield served


def ask(
    served: Served, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer; nothing is sent but what is given."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    given = {"Host": f"127.0.0.1:{served.port}"} | (headers or {})
    if body is not None:
        given.setdefault("Content-Length", str(len(body)))
    for name, value in given.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def own_headers(served: Served) -> dict[str, str]:
    """What the lab's own page sends with a change."""
    return {
        "Origin": served.origin,
        "Content-Type": "application/json",
        CSRF_HEADER: served.access.csrf,
        "Cookie": f"{served.access.cookie}={served.access.token}",
    }


# --- who may ask


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": ""},
        {"Host": "evil.example"},
        {"Host": "evil.example:8070"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost@evil.example"},
        {"Host": "127.0.0.1:80:80"},
        {"Host": "0.0.0.0"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/api/runs", "/file?run=good&path=info/demo_t0_s0_session_df_train.csv"])
def test_other_pages_read_nothing(served: Served, path: str, headers: dict[str, str]) -> None:
    status, answered, text = ask(served, "GET", path, headers)
    assert status in (400, 403)
    assert "total_reward" not in text
    assert "access-control-allow-origin" not in answered


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "[::1]:8070", "127.0.0.1"])
def test_names_of_this_machine_are_welcome(served: Served, host: str) -> None:
    # a tunnel has another port
    assert ask(served, "GET", "/api/runs", {"Host": host, "Origin": f"http://{host}"})[0] == 200


START = json.dumps({"text": "x", "mode": "train"}).encode()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 404),  # it passes the guard, and the spec is refused
        ({"Cookie": ""}, 403),
        ({"Cookie": "other=1"}, 403),
        ({"Cookie": "COOKIE=wrong"}, 403),
        ({"Cookie": "COOKIE="}, 403),
        ({CSRF_HEADER: ""}, 403),
        ({CSRF_HEADER: "wrong"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Length": "x"}, 400),
        ({"Content-Length": str(MAX_BODY + 1)}, 413),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/api/act/start"])
def test_only_the_page_with_the_token_acts(served: Served, path: str, changes: dict[str, str], status: int) -> None:
    changes = {name: value.replace("COOKIE", served.access.cookie) for name, value in changes.items()}
    assert ask(served, "POST", path, own_headers(served) | changes, START)[0] == status


@pytest.mark.parametrize("path", ["start", "stop", "resume", "check"])
def test_nothing_is_started_without_control(plain: Served, path: str) -> None:
    status, _, text = ask(plain, "POST", f"/api/act/{path}", own_headers(plain), b"{}")
    assert status == 403
    assert "--control" in text


@pytest.mark.parametrize("path", ["specs", "spec?name=ppo_cartpole", "jobs"])
@pytest.mark.parametrize("cookie", ["", "x=1"])
def test_what_belongs_to_control_needs_the_token(served: Served, plain: Served, path: str, cookie: str) -> None:
    assert ask(served, "GET", f"/api/act/{path}", own_headers(served))[0] == 200
    assert ask(served, "GET", f"/api/act/{path}", {"Cookie": cookie})[0] == 403
    assert ask(plain, "GET", f"/api/act/{path}", own_headers(plain))[0] == 403


def test_the_link_gives_a_strict_cookie(served: Served, plain: Served) -> None:
    status, headers, _ = ask(served, "GET", f"/?token={served.access.token}")
    assert (status, headers["location"]) == (303, "/")
    assert headers["set-cookie"].startswith(f"{served.access.cookie}={served.access.token};")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    for token in ("wrong", "", str(served.access.token) + "x", "None"):
        status, headers, _ = ask(served, "GET", f"/?token={quote(token)}")
        assert (status, headers.get("set-cookie")) == (403, None)
        assert ask(plain, "GET", f"/?token={quote(token)}")[0] == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    status, headers, _ = ask(served, method, "/api/runs", own_headers(served))
    assert status == 405
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/ui.css", "/nothing", "/file?run=good&path=demo_spec.yaml"])
def test_every_answer_has_a_strict_policy(served: Served, path: str) -> None:
    _, headers, _ = ask(served, "GET", path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


# --- what is served


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.csv",
        "../../outside/secret.csv",
        "info/../../../outside/secret.csv",
        "/etc/passwd",
        "info//../other.txt",
        "info/..",
        "..",
        "",
        "other.txt",
        ".env",
        "info/.env",
        "info/demo\x00.csv",
        "info\\..\\other.txt",
        "%2e%2e/outside/secret.csv",
        "..%2foutside%2fsecret.csv",
        "info",
        "model/nothing.safetensors",
        "log/../other.txt",
    ],
)
@pytest.mark.parametrize("address", ["/file?run=good&path={}", "/api/log?run=good&path={}"])
def test_no_path_leads_out_of_a_run(served: Served, address: str, path: str) -> None:
    status, _, text = ask(served, "GET", address.format(quote(path, safe="%")))
    assert status in (404, 422)
    assert SECRET not in text
    assert "root:" not in text


@pytest.mark.parametrize(
    "run",
    [
        "..",
        "../outside",
        "good/..",
        "good/../../outside",
        "/etc",
        "outside",
        "loose.csv",
        ".",
        "",
        "good/info",
        "bad\nname",
        "*",
    ],
)
@pytest.mark.parametrize("address", ["/api/run?run={}", "/api/files?run={}", "/file?run={}&path=secret.csv"])
def test_only_runs_of_the_data_folder_are_known(served: Served, address: str, run: str) -> None:
    status, _, text = ask(served, "GET", address.format(quote(run, safe="")))
    assert status == 404
    assert SECRET not in text


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "app.py", "nothing.js", "page.js", "%2e%2e/guard.py"])
def test_only_the_pages_own_files_are_static(served: Served, path: str) -> None:
    assert ask(served, "GET", f"/static/{path}")[0] == 404


@pytest.mark.parametrize(
    "address",
    [
        "/api/run?run=linked",
        "/file?run=linked&path=info/demo_t0_s1_session_df_train.csv",
        "/api/log?run=folder_link&path=log/secret.csv",
        "/api/run?run=folder_link",
        "/api/compare?run=good&run=linked",
    ],
)
def test_links_are_not_followed(served: Served, address: str) -> None:
    status, _, text = ask(served, "GET", address)
    assert status == 404
    assert SECRET not in text


def test_notes_are_not_written_through_a_link(served: Served, data_dir: Path) -> None:
    target = data_dir.parent / "outside" / "notes.json"
    os.symlink(target, data_dir / "good" / "notes.json")
    body = json.dumps({"run": "good", "tags": ["a"], "note": "b"}).encode()
    try:
        assert ask(served, "POST", "/api/notes", own_headers(served), body)[0] == 200
        assert not target.exists()
        assert not (data_dir / "good" / "notes.json").is_symlink()
    finally:
        (data_dir / "good" / "notes.json").unlink()


@pytest.mark.parametrize(
    "content",
    [
        {"tags": ["a" * 100]},
        {"tags": ["a"] * 100},
        {"tags": ["a\nb"]},
        {"tags": "a"},
        {"note": "a" * 30_000},
        {"note": 1},
        {"run": "../outside"},
    ],
    ids=lambda content: str(content)[:30],
)
def test_notes_have_limits(served: Served, data_dir: Path, content: dict[str, Any]) -> None:
    body = json.dumps({"run": "good"} | content).encode()
    assert ask(served, "POST", "/api/notes", own_headers(served), body)[0] in (404, 422)
    assert not (data_dir / "good" / "notes.json").exists()


def test_a_spec_of_others_is_not_imported_without_control(plain: Served, data_dir: Path) -> None:
    spec = {**SPEC, "env": {"name": "some_module:Env-v0"}}
    run = write_run(data_dir / "code", {0: make_table()}, spec=spec)
    (run.path / "model" / "demo_t0_s0_ckpt-best_net_model.safetensors").write_bytes(b"")
    status, _, text = ask(plain, "POST", "/api/video", own_headers(plain), json.dumps({"run": "code"}).encode())
    assert status == 404
    assert "imports modules" in text


# --- pages of hostile runs


def test_hostile_runs_are_listed_as_text(served: Served, look: Look) -> None:
    page = look(served).page
    expect(page.locator("[data-run]")).to_have_count(5 + (served.data_dir / "code").exists())
    expect(page.get_by_role("link", name=HOSTILE_NAME)).to_be_visible()
    expect(page.locator('[data-run="linked"]')).to_contain_text("is a link")
    expect(page.locator('[data-run="broken"] .pill')).to_have_text("unreadable")
    assert page.locator("#main img").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize("tab", ["Log", "Sessions", "Spec", "Files", "Machine"])
def test_the_page_of_a_hostile_run_is_text(served: Served, look: Look, tab: str) -> None:
    page = look(served, f"run/{quote(HOSTILE_NAME, safe='')}").page
    page.get_by_role("tab", name=tab).click()
    expect(page.locator(".tab-body > *").first).to_be_visible()
    assert page.locator("#main img, #main script, #main iframe").count() == 0
    assert "owned" not in page.title()
    if tab == "Log":
        expect(page.get_by_label("Log", exact=True)).to_contain_text(HTML)
