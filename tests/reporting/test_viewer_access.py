"""Which pages may drive the viewer, by the headers of their requests. Needs no viser."""

import socket

from graf.reporting.viewer.access import MAX_LOGGED, Access

import pytest


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("localhost:9000", "http://localhost:9000"),  # ssh -L 9000:127.0.0.1:8080, docker run --publish 9000:8080
        ("LocalHost:8080", "http://localhost:8080"),
        ("192.168.1.7:8080", "http://192.168.1.7:8080"),  # --host 0.0.0.0
        ("localhost", "http://localhost:80"),
        ("localhost:443", "https://localhost"),  # of a proxy that speaks TLS
        ("localhost:8080", None),
    ],
)
def test_its_own_pages_may(host, origin):
    assert Access("127.0.0.1").refusal([host], [origin] if origin else []) == ""


@pytest.mark.parametrize(
    ("host", "origin", "reason"),
    [
        ("127.0.0.1:8080", "http://evil.example", "a page of 'http://evil.example' may not use the viewer at '127.0.0.1:8080'"),
        ("127.0.0.1:8080", "http://127.0.0.1:3000", "a page of 'http://127.0.0.1:3000' may not"),
        ("127.0.0.1", "https://127.0.0.1:8080", "a page of 'https://127.0.0.1:8080' may not"),
        ("127.0.0.1:8080", "null", "a page of 'null' may not"),
        ("127.0.0.1:8080", "", "a page of '' may not"),
        ("127.0.0.1:8080", "http://[", "a page of 'http://[' may not"),
        ("evil.example:8080", "http://evil.example:8080", "'evil.example:8080' is no name of this viewer"),
        ("localhost.evil.example", None, "is no name of this viewer; if it should be, start the viewer with --allow_host"),
        ("", None, "'' is no name of this viewer"),
        ("evil\x1b[2J", None, r"'evil\x1b[2J' is no name"),  # nothing that a terminal would obey
    ],
)
def test_others_may_not(host, origin, reason):
    assert reason in Access("127.0.0.1").refusal([host], [] if origin is None else [origin])


def test_names_that_the_user_gives_may():
    access = Access("Viewer.lan", ["gpu-box.lan"])
    for name in ("viewer.lan", "gpu-box.lan", socket.gethostname()):
        assert access.refusal([f"{name}:8080"], [f"http://{name}:8080"]) == ""
    assert access.refusal(["127.0.0.1:8080"], ["https://gpu-box.lan"]) == ""  # of a proxy that passes its own Host
    assert access.refusal(["127.0.0.1:8080"], ["http://viewer.lan:3000"])
    assert access.refusal(["other.lan:8080"], ["http://gpu-box.lan"])


def test_headers_that_come_twice_are_refused():
    access = Access("127.0.0.1")
    assert access.refusal([], [])
    assert access.refusal(["localhost", "evil.example"], [])
    assert access.refusal(["localhost"], ["http://localhost", "http://evil.example"])


def test_the_log_tells_a_refusal_once_and_not_without_end(caplog):
    access = Access("127.0.0.1")
    for _ in range(3):
        access.refusal(["evil.example"], [])
    assert len(caplog.records) == 1
    for i in range(100):
        access.refusal([f"{i}.evil.example"], [])
    assert len(caplog.records) == MAX_LOGGED
