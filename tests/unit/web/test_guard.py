"""Who may do what: the rules, one by one."""

from __future__ import annotations

import pytest

from polybus.web.guard import Guard, host_name, is_loopback

TOKEN = "correct-horse-battery"
HERE = {"host": "127.0.0.1:5280"}
RIGHT = {**HERE, "authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def local() -> Guard:
    return Guard(TOKEN, "127.0.0.1")


def status(guard: Guard, method: str, path: str, headers: dict[str, str], token: str | None = None) -> int:
    found = guard.refuse(method, path, headers, token)
    if found is None:
        return 200
    assert found.error
    assert found.next
    return found.status


class TestHost:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1:5280", "localhost:5280", "LOCALHOST", "[::1]:5280", "127.0.0.1"]
    )
    def test_our_own_names(self, local: Guard, host: str) -> None:
        assert status(local, "GET", "/api/services", {"host": host}) == 200

    @pytest.mark.parametrize(
        "host",
        [
            *("evil.example", "evil.example:5280", "127.0.0.1.evil.example", "localhost.evil.example:5280"),
            *("", "[::1", "127.0.0.1:5280@evil.example", "10.0.0.7:5280", "a b", "localhost:99999:1"),
        ],
    )
    def test_a_name_that_somebody_else_pointed_here(self, local: Guard, host: str) -> None:
        """Also for the pages: a page served under that name would be of that origin."""
        for path in ("/", "/api/services", "/healthz"):
            assert status(local, "GET", path, {"host": host}) == 403

    def test_no_host_at_all(self, local: Guard) -> None:
        assert status(local, "GET", "/", {}) == 403

    def test_a_name_that_was_allowed(self) -> None:
        guard = Guard(TOKEN, "127.0.0.1", ["bus.example"])
        assert status(guard, "GET", "/", {"host": "bus.example"}) == 200
        assert status(guard, "GET", "/", {"host": "bus.example:8443"}) == 200
        assert status(guard, "GET", "/", {"host": "127.0.0.1:5280"}) == 200
        assert status(guard, "GET", "/", {"host": "other.example"}) == 403

    def test_on_all_addresses_a_number_is_nobodys_name(self) -> None:
        guard = Guard(TOKEN, "0.0.0.0")
        assert status(guard, "GET", "/", {"host": "10.0.0.7:5280"}) == 200
        assert status(guard, "GET", "/", {"host": "[fe80::1]:5280"}) == 200
        assert status(guard, "GET", "/", {"host": "localhost:5280"}) == 200
        assert status(guard, "GET", "/", {"host": "evil.example:5280"}) == 403


class TestToken:
    def test_reading_on_loopback_is_free(self, local: Guard) -> None:
        assert not local.is_private
        assert status(local, "GET", "/api/services", HERE) == 200
        assert status(local, "HEAD", "/metrics", HERE) == 200

    @pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
    def test_everything_else_needs_it(self, local: Guard, method: str) -> None:
        assert status(local, method, "/api/dead/retry", HERE) == 401
        assert status(local, method, "/api/dead/retry", RIGHT) == 200

    @pytest.mark.parametrize(
        "given",
        [
            "Bearer wrong",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer",
            "Bearer ",
            TOKEN,
            f"Basic {TOKEN}",
            "Bearer \udcff",
            "Bearer ключ",
        ],
    )
    def test_a_wrong_one(self, local: Guard, given: str) -> None:
        assert status(local, "POST", "/api/dead/retry", {**HERE, "authorization": given}) == 401

    def test_in_an_address_it_is_for_reading_alone(self, local: Guard) -> None:
        """What stands in an address ends up in histories and logs of proxies."""
        assert status(local, "POST", "/api/dead/retry", HERE, TOKEN) == 401

    @pytest.mark.parametrize("guard", [Guard(TOKEN, "0.0.0.0"), Guard(TOKEN, "127.0.0.1", ["bus.example"])])
    def test_from_elsewhere_reading_needs_it_too(self, guard: Guard) -> None:
        assert guard.is_private
        for path in ("/api/services", "/api/stream", "/metrics"):
            assert status(guard, "GET", path, HERE) == 401
            assert status(guard, "GET", path, HERE, "wrong") == 401
            assert status(guard, "GET", path, HERE, TOKEN) == 200
            assert status(guard, "GET", path, RIGHT) == 200
        # A header that is wrong is not made good by an address that is right.
        assert status(guard, "GET", "/api/stream", {**HERE, "authorization": "Bearer wrong"}, TOKEN) == 401

    def test_pages_and_probes_are_for_everybody(self) -> None:
        guard = Guard(TOKEN, "0.0.0.0")
        for path in ("/", "/js/main.js", "/healthz", "/readyz"):
            assert status(guard, "GET", path, HERE) == 200


class TestOrigin:
    def test_our_own_page(self, local: Guard) -> None:
        headers = {**RIGHT, "origin": "http://127.0.0.1:5280", "sec-fetch-site": "same-origin"}
        assert status(local, "POST", "/api/dead/retry", headers) == 200

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:5280", ""]
    )
    def test_pages_of_others(self, local: Guard, origin: str) -> None:
        """Even with the right token: it was not for them."""
        assert status(local, "POST", "/api/dead/retry", {**RIGHT, "origin": origin}) == 403
        assert status(local, "GET", "/api/services", {**HERE, "origin": origin}) == 403

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_what_the_browser_says_of_it(self, local: Guard, site: str) -> None:
        assert status(local, "GET", "/api/stream", {**HERE, "sec-fetch-site": site}) == 403
        # A link to the dashboard from elsewhere is fine.
        assert status(local, "GET", "/", {**HERE, "sec-fetch-site": site}) == 200

    def test_behind_a_proxy_with_tls(self) -> None:
        guard = Guard(TOKEN, "127.0.0.1", ["bus.example"])
        headers = {"host": "bus.example", "origin": "https://bus.example", "authorization": f"Bearer {TOKEN}"}
        assert status(guard, "POST", "/api/dead/retry", headers) == 200


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("::1", "::1"),
        ("[::1]:80", "::1"),
        ("A.example:80", "a.example"),
        ("a.example", "a.example"),
        ("[", ""),
    ],
)
def test_names_of_hosts(text: str, name: str) -> None:
    assert host_name(text) == name


def test_which_hosts_are_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.7", "localhost.example", "")))
