"""Nobody but the owner of the token reads or changes anything through the monitor, whatever page they have open."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.dashboard
from headrace.dashboard.server import Server
from tests.unit.dashboard.recorded import Client, checkpoint, served

STATIC = Path(headrace.dashboard.__file__).parent / "static"
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = served(checkpoint(tmp_path_factory.mktemp("monitor") / "ckpt", name=EVIL))
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def cookie(client: Client) -> dict[str, str]:
    """The cookie that the URL with the token gives."""
    status, headers, _ = client.send("GET", f"/?token={client.server.token}")
    assert status == 200
    return {"Cookie": headers["set-cookie"].partition(";")[0]}


def writing(client: Client) -> dict[str, str]:
    return {**cookie(client), "Content-Type": "application/json", "Origin": client.origin}


def do(client: Client) -> str:
    return f"/api/queries/{client.bearer().get('/api/queries')['queries'][0]['id']}/do"


def test_it_listens_on_loopback_only(server: Server) -> None:
    assert server.host == "127.0.0.1"
    assert server.url.startswith(f"http://127.0.0.1:{server.port}/?token=")


@pytest.mark.parametrize("path", ["/api/queries", "/api/queries/x", "/api/stream", "/api/nothing", "/api/queries?token=x"])
def test_without_the_token_nothing_is_said(client: Client, path: str) -> None:
    status, _, text = client.send("GET", path)
    assert status == 401
    assert "the monitor's token" in text
    assert EVIL not in text


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(client: Client) -> None:
    status, headers, page = client.send("GET", f"/?token={client.server.token}")
    assert status == 200
    assert client.server.token not in page
    parts = [part.strip() for part in headers["set-cookie"].split(";")]
    assert parts[0].startswith(f"headrace-{client.server.port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(parts)
    assert client.send("GET", "/api/queries", **cookie(client))[0] == 200


@pytest.mark.parametrize("path", ["/?token=wrong", "/", "/?token=", "/?token=%C3%A9"])
def test_a_wrong_token_gives_no_cookie(client: Client, path: str) -> None:
    assert "set-cookie" not in client.send("GET", path)[1]


def test_the_token_of_another_server_does_not_help(client: Client, tmp_path: Path) -> None:
    other = served(checkpoint(tmp_path / "other"))
    try:
        theirs = cookie(Client(other))
        assert client.send("GET", "/api/queries", **theirs)[0] == 401
        renamed = {"Cookie": f"headrace-{client.server.port}={other.token}"}
        assert client.send("GET", "/api/queries", **renamed)[0] == 401
    finally:
        other.stop()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "", "127.0.0.1.evil.example:{port}", "[::1"])
def test_a_name_that_was_rebound_to_this_machine_is_refused(client: Client, host: str) -> None:
    status, _, text = client.send("GET", "/api/queries", **cookie(client), Host=host.format(port=client.server.port))
    assert status == 421, text


def test_localhost_is_a_name_of_this_machine(client: Client) -> None:
    assert client.send("GET", "/api/queries", **cookie(client), Host=f"localhost:{client.server.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", None, "http://127.0.0.1:1", "https://127.0.0.1.evil.example", "ftp://x"])
def test_other_pages_cannot_write_even_with_the_cookie(client: Client, origin: str | None) -> None:
    headers = {**writing(client), "Origin": origin}
    status, _, text = client.send("POST", do(client), {"do": "rescale", "instances": 2}, **headers)
    assert status == 403, text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None, "json"])
def test_a_form_cannot_write(client: Client, kind: str | None) -> None:
    status, _, text = client.send("POST", do(client), {"do": "rescale", "instances": 2}, **{**writing(client), "Content-Type": kind})
    assert status == 415, text


def test_writing_needs_the_token(client: Client) -> None:
    headers = {**writing(client), "Cookie": None}
    assert client.send("POST", do(client), {"do": "rescale", "instances": 2}, **headers)[0] == 401


def test_the_page_itself_may_write_and_hears_what_the_query_says(client: Client) -> None:
    status, _, text = client.send("POST", do(client), {"do": "rescale", "instances": 2}, **writing(client))
    assert status == 400
    assert "wanted a query that runs on this checkpoint; found none" in json.loads(text)["error"]


def test_every_answer_forbids_inline_script_frames_and_guessing_of_types(client: Client) -> None:
    for path in ("/", "/static/main.js", "/api/queries", "/api/nothing"):
        headers = client.send("GET", path)[1]
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules["script-src"] == rules["style-src"] == "'self'"
        assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_the_page_has_no_inline_script_and_loads_nothing_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert "<script type=\"module\" src=\"static/main.js\"></script>" in page
    assert page.count("<script") == 1
    assert "style=" not in page
    assert " on" not in page.replace(" only", "")
    own = [*STATIC.glob("*.js"), *STATIC.glob("pages/*.js"), *STATIC.glob("editor/*"), *STATIC.glob("*.css"), *STATIC.glob("*.html")]
    assert len(own) > 8
    for path in own:
        text = path.read_text()
        assert "http://" not in text.replace("http://www.w3.org", ""), path
        assert "https://" not in text, path
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{path} has {word}"


def test_every_file_of_the_page_is_in_the_wheel() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    suffixes = {pattern.removeprefix("**/*") for pattern in project["tool"]["setuptools"]["package-data"]["headrace"]}
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= suffixes
    vendored = {path.stem.partition("-")[0] for path in files if path.parent.name == "vendor"}
    assert {path.stem for path in files if path.suffix == ".LICENSE"} == vendored


def test_names_go_out_as_json_only(client: Client) -> None:
    status, headers, text = client.bearer().send("GET", "/api/queries")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(text)["queries"][0]["name"] == EVIL


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2f..%2fconfig.py", "/../pyproject.toml"])
def test_only_files_of_the_page_are_served(client: Client, path: str) -> None:
    status, _, text = client.bearer().send("GET", path)
    assert status in (400, 404), text
    assert "import" not in text


def test_a_query_that_is_not_shown_is_an_error_in_words(client: Client) -> None:
    status, _, text = client.bearer().send("GET", "/api/queries/nothing")
    assert status == 400
    assert "a query that the monitor shows" in json.loads(text)["error"]
