"""Who may ask the studio: names, origins, tokens, sizes, paths; and that nothing brings it down."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra studio is not installed")

from flare.rng import stream
from flare.studio.app import STATIC
from flare.studio.guard import POLICY
from flare.studio.run_folders import below
from flare.studio.schedule_api import EXAMPLE
from flare.studio.serving import address_of
from flare.studio.settings import Limits, Studio
from tests.hostile import TEXTS
from tests.studio_client import Client, client_of, refused, served

TOKEN = "a token that nobody guesses"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    folder = tmp_path_factory.mktemp("studio")
    (folder.parent / "secret.txt").write_text("secret")
    return Studio(folder, limits=Limits(max_body_bytes=20_000))


@pytest.fixture(scope="module")
def client(studio: Studio) -> Iterator[Client]:
    with client_of(studio) as asking:
        yield asking


@pytest.mark.parametrize(
    "name",
    [
        "evil.com", "evil.com:8765", "localhost.evil.com", "127.0.0.1.nip.io", "[::", "", "192.168.0.7",
        "evil.com@127.0.0.1", "127.0.0.1#.evil.com", "127.0.0.1/evil.com", "127.0.0.1?evil.com", "127.0.0.1:x",
    ],
)  # fmt: skip
def test_a_name_that_is_not_of_this_machine_is_refused(client: Client, name: str) -> None:
    refused(client.get("/api/about", headers={"Host": name}), 421, "Host")
    assert client.get("/", headers={"Host": name}).status_code == 421


@pytest.mark.parametrize(("path", "title"), [("/", "FLARE studio"), ("/docs", "FLARE service")])
def test_every_page_has_the_same_head(client: Client, path: str, title: str) -> None:
    head = client.get(path).text.partition("</head>")[0]
    assert f"<title>{title}</title>" in head
    assert head.index('<meta charset="utf-8">') < 100
    assert "/static/css/base.css" in head
    assert "<!--" not in head


@pytest.mark.parametrize("name", ["localhost", "localhost:9", "127.0.0.1:8765", "[::1]:8765"])
def test_the_machine_itself_is_answered_by_any_of_its_names(client: Client, name: str) -> None:
    assert client.get("/api/about", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize("headers", [
    {"Origin": "http://evil.com"}, {"Origin": "null"}, {"Origin": "http://localhost:1"}, {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
])  # fmt: skip
def test_pages_of_other_sites_can_ask_nothing(client: Client, headers: dict[str, str]) -> None:
    refused(client.get("/api/about", headers=headers), 403, "Origin")
    refused(client.post("/api/schedule", EXAMPLE, headers=headers), 403, "Origin")


def test_a_link_from_another_site_opens_the_page_and_its_own_page_may_ask(client: Client) -> None:
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
    own = {"Origin": "http://localhost:8765", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/schedule", EXAMPLE, headers=own).status_code == 200


def test_a_form_of_another_site_cannot_post(client: Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = client.ask("POST", "/api/schedule", content=b"{}", headers={"Content-Type": kind})
        refused(answer, 415, "Content-Type")


def test_another_address_needs_a_token_and_every_request_has_to_know_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reached from other machines"):
        Studio(tmp_path, host="0.0.0.0")
    with pytest.raises(ValueError, match="could be guessed"):
        Studio(tmp_path, token="short")
    shared = Studio(tmp_path, host="0.0.0.0", token=TOKEN)
    assert address_of(shared) == f"http://127.0.0.1:8765/#token={TOKEN}"
    with client_of(shared, host="machine.example:8765") as asking:
        for header in ({}, {"Authorization": TOKEN[:-1]}, {"Authorization": "Bearer é".encode()}):
            refused(asking.get("/api/about", headers=header), 401, "Authorization")  # type: ignore[arg-type]
        assert asking.get("/api/about", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert asking.get("/").status_code == 200  # the page itself holds no secret


def test_a_body_above_the_limit_is_refused_whether_it_says_so_or_not(client: Client, studio: Studio) -> None:
    large = b'"' + b"x" * studio.limits.max_body_bytes + b'"'
    json = {"Content-Type": "application/json"}
    assert "at most 20,000 bytes" in refused(client.ask("POST", "/api/schedule", content=large, headers=json), 413)

    async def pieces() -> Any:
        for _ in range(30):
            yield b"x" * 1000

    for path in ("/api/schedule", "/api/new-run/check"):
        refused(client.ask("POST", path, content=pieces(), headers=json), 413)
    for length in ("-1", "1e9", "9" * 30, "nan"):
        refused(client.ask("POST", "/api/schedule", content=b"{}", headers=json | {"Content-Length": length}), 413)


@pytest.mark.parametrize("path", [
    "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/%2e%2e%2f%2e%2e%2fsecret.txt",
    "/static//etc/passwd", "/static/%00", "/static/css", "/static/js/../../app.py", "/..%2f..%2fsecret.txt",
    "/static/....//app.py", "/static/..\\app.py", "/static/%c0%ae%c0%ae/app.py",
])  # fmt: skip
def test_no_path_leads_out_of_the_pages(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 405), path
    assert "secret" not in answer.text
    assert "import" not in answer.text


def test_no_path_leads_out_of_the_folder(studio: Studio) -> None:
    (studio.folder / "out").symlink_to(studio.folder.parent)
    (studio.folder / "own").symlink_to(studio.folder / "a")
    for path in (
        "..",
        "a/../..",
        "/etc/passwd",
        "out",
        "out/secret.txt",
        "own",
        "own/b",
        "a\0b",
        "out/../a",
        "a/../../x",
    ):
        with pytest.raises(ValueError, match="leads out of"):
            below(studio.folder, path)
    root = studio.folder.resolve()
    assert below(studio.folder, "a/b") == root / "a" / "b"
    assert below(studio.folder, "c/../a/./b") == below(studio.folder, f"{root}/a/b") == root / "a" / "b"


def test_a_folder_behind_a_link_is_the_same_folder(studio: Studio, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(studio.folder)
    for root in (studio.folder, tmp_path / "elsewhere"):
        assert below(root, str(tmp_path / "elsewhere" / "a")) == studio.folder.resolve() / "a"


def test_every_answer_forbids_what_a_page_does_not_need(client: Client) -> None:
    for path in ("/", "/docs", "/static/js/main.js", "/api/about", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_the_pages_name_no_other_host_and_hold_no_script_or_style_of_their_own() -> None:
    for page in STATIC.rglob("*"):
        if page.suffix in (".html", ".js", ".css") and "vendor" not in page.parts:
            text = page.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in text, page
            assert "https:" not in text, page
            assert "innerHTML" not in text, page
            assert "insertAdjacentHTML" not in text, page
    for page in STATIC.glob("*.html"):
        text = page.read_text()
        assert "style=" not in text
        assert " onclick" not in text
        assert text.count("<script") == text.count('<script type="module" src="/static/')


@pytest.fixture(scope="module")
def port(studio: Studio) -> Iterator[int]:
    """The studio behind a real socket."""
    with served(studio.folder, limits=studio.limits) as running:
        yield running.port


def _said(port: int, raw: bytes, *, leave: bool = False) -> bytes:
    """The beginning of the answer to what is sent; none is waited for where the client leaves at once."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as asking:
        try:
            asking.sendall(raw)
            return b"" if leave else asking.recv(4096)
        except ConnectionError:
            return b""


HALF = 2  # the kind of request of which the rest never comes


def _hostile(number: int) -> bytes:
    """A request that no client sends: noise, halves, lies about lengths, absurd heads and bodies."""
    rng = stream(number, "hostile")
    noise = rng.bytes(int(rng.integers(1, 400)))
    text = TEXTS[number % len(TEXTS)].encode("utf-8", "replace")
    head = b"POST /api/schedule HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    lie = b"%d" % (len(text) + int(rng.integers(1, 500)))
    return [
        b"\x16\x03" + noise + b"\r\n\r\n",
        b"GET /" + noise + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        head + b"Content-Length: " + lie + b"\r\n\r\n" + text,
        head + b"Content-Length: %d\r\n\r\n" % len(text) + text,
        head + b"Transfer-Encoding: chunked\r\n\r\nno length\r\n" + noise,
        b"GET / HTTP/1.1\r\nHost: " + text[:200].replace(b"\n", b" ") + b"\r\n\r\n",
        b"GET /static/" + b"%2e%2e/" * (number % 40) + b"etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * (number % 200) + b"\r\n",
    ][number % 8]


def test_a_thousand_hostile_requests_leave_it_running(port: int) -> None:
    codes = set()
    for number in range(1000):
        said = _said(port, _hostile(number), leave=number % 8 == HALF)
        codes.add(said[9:12].decode("latin-1") if said.startswith(b"HTTP/1.1 ") else "")
        assert b"root:" not in said
    assert codes == {"", "400", "404", "405", "421", "422"}
    assert b"200 OK" in _said(port, b"GET /api/about HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
