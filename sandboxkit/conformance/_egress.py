"""The guarded way out: `Network.allow`, with servers on this host that stand for the outside."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from sandboxkit import ConfigError, EgressEvent, Network, Session
from sandboxkit.backend import Feature

from ._lifecycle_detached import Lasting
from ._outside import PACKAGE, WHEEL, echo, inside, pages, run_inside
from ._suite import needs
from ._unreachable import tried
from ._watch import Stopwatch, allowed, wait_until


class Audit:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[EgressEvent] = []

    def __call__(self, event: EgressEvent) -> None:
        self.events.append(event)

    def wait(self, number: int) -> list[EgressEvent]:
        """Once there are so many, and no more of them."""
        wait_until(lambda: len(self.events) >= number, f"{number} events come")
        assert len(self.events) == number, self.events
        return self.events


def to_here(host: str, port: int) -> list[str]:
    """A resolver for which every name is this host."""
    return ["127.0.0.1"]


def request(port: int, path: str, *headers: str, method: str = "GET", body: str = "") -> str:
    """A request for web.test, as a proxy gets it."""
    lines = (f"{method} http://web.test:{port}{path} HTTP/1.1", "Host: other.test", *headers, "", body)
    return "\r\n".join(lines)


def allowing(*private: str, allow: Sequence[str] = ("public.test",), **options: Any) -> Network:
    """A way out to public.test, and to `private` at this host."""
    return Network.allow(allow, private=private, **{"resolver": to_here, **options})


class Guarded(Lasting):
    """What the classes below share."""

    def guarded(self, *private: str, **options: Any) -> Session:
        """A session with such a way out."""
        return self.create("python", network=allowing(*private, **options))


class GuardedEgress(Guarded):
    """`Network.allow`."""

    def test_a_name_on_the_list_is_reached(self) -> None:
        """By plain HTTP, by CONNECT and by SOCKS5; the audit is told of each once."""
        audit = Audit()
        with pages() as web, echo() as tcp, self.guarded(f"*.test:{web}", f"tcp.test:{tcp}", audit=audit) as session:
            assert inside(session, f"fetch('http://web.test:{web}/x')") == [200, "hello from /x"]
            assert inside(session, f"through(connect('TCP.test.', {tcp}), b'abc')") == [200, "abc"]
            assert inside(session, f"through(socks('tcp.test', {tcp}), b'def')") == [0, "def"]
            found = [(e.protocol, e.host, e.port, e.verdict, e.address) for e in audit.wait(3)]
        assert found == [
            ("http", "web.test", web, "allowed", "127.0.0.1"),
            ("connect", "tcp.test", tcp, "allowed", "127.0.0.1"),
            ("socks", "tcp.test", tcp, "allowed", "127.0.0.1"),
        ]
        assert [(e.bytes_out, e.bytes_in) for e in audit.events[1:]] == [(3, 3), (3, 3)]
        assert audit.events[0].bytes_in > 13

    def test_a_name_that_is_not_on_the_list_is_denied(self) -> None:
        """The answer is one sentence that says what would allow it."""
        audit = Audit()
        with pages() as web, self.guarded(f"web.test:{web}", audit=audit) as session:
            status, text = inside(session, "fetch('http://denied.test/x')")
            assert status == 403
            assert "denied.test:80 is not on this sandbox's list" in text
            assert 'Network.allow(["denied.test:80"])' in text
            assert inside(session, "through(connect('denied.test', 443), b'')")[0] == 403
            assert inside(session, "through(socks('denied.test', 443), b'')")[0] == 2
            verdicts = [(e.host, e.port, e.verdict, e.bytes_out, e.address) for e in audit.wait(3)]
        assert verdicts == [
            ("denied.test", 80, "denied", 0, None),
            ("denied.test", 443, "denied", 0, None),
            ("denied.test", 443, "denied", 0, None),
        ]

    def test_a_port_that_is_not_on_the_list_is_denied(self) -> None:
        """80 and 443 where none is named, else that one alone."""
        with pages() as web, self.guarded(f"web.test:{web}") as session:
            for host, port in (("web.test", 80), ("web.test", 443), ("public.test", web), ("public.test", 22)):
                assert inside(session, f"through(connect({host!r}, {port}), b'')")[0] == 403, (host, port)

    def test_an_address_has_to_be_listed_itself(self) -> None:
        """A name that leads there is another thing."""
        with pages() as web:
            with self.guarded(f"web.test:{web}") as session:
                for host in ("127.0.0.1", "[::1]", "2130706433", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"):
                    status, _ = inside(session, f"through(connect({host!r}, {web}), b'')")
                    assert status in (400, 403), host
            with self.guarded(f"127.0.0.1:{web}") as session:
                assert inside(session, f"through(connect('127.0.0.1', {web}), b'')")[0] == 200

    def test_a_redirect_is_judged_anew(self) -> None:
        """To a host that is not on the list it leads nowhere."""
        with pages() as web, self.guarded(f"web.test:{web}") as session:
            to_itself = f"http://web.test:{web}/redirect?http://web.test:{web}/there"
            assert inside(session, f"fetch({to_itself!r})") == [200, "hello from /there"]
            for away in (f"http://other.test:{web}/", "http://169.254.169.254/latest/meta-data/"):
                assert inside(session, f"fetch('http://web.test:{web}/redirect?{away}')")[0] == 403

    def test_a_name_that_leads_to_this_host_is_denied(self) -> None:
        """Whatever the list says of a public name, a private address is not public."""
        audit = Audit()
        with pages() as web, self.guarded(allow=[f"public.test:{web}", "public.test:443"], audit=audit) as session:
            status, text = inside(session, f"fetch('http://public.test:{web}/x')")
            assert status == 403
            assert "not public" in text
            assert "127.0.0.1" not in text  # nothing of this network is told
            assert inside(session, "through(socks('public.test', 443), b'')")[0] == 2
            assert all("127.0.0.1" in event.reason for event in audit.wait(2))

    def test_a_name_that_changes_its_address_gains_nothing(self) -> None:
        """DNS rebinding: each connection asks once, and goes to the very address that was judged."""
        answers = [["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "169.254.169.254"], ["::ffff:127.0.0.1"], []]
        asked = []

        def resolver(host: str, port: int) -> list[str]:
            asked.append((host, port))
            return answers[len(asked) - 1]

        with echo() as tcp, self.guarded(f"tcp.test:{tcp}", resolver=resolver) as session:
            codes = [inside(session, f"through(connect('tcp.test', {tcp}), b'x')")[0] for _ in answers]
        assert codes == [200, 403, 200, 403, 403]
        assert asked == [("tcp.test", tcp)] * len(answers)

    def test_a_wildcard_is_for_subdomains(self) -> None:
        """Not for the name itself, nor for one that only ends alike."""
        with echo() as tcp, self.guarded(f"*.web.test:{tcp}") as session:
            for host, code in (
                ("a.web.test", 200),
                ("A.B.Web.Test.", 200),
                ("web.test", 403),
                ("badweb.test", 403),
                ("a.web.test.evil.org", 403),
            ):
                assert inside(session, f"through(connect({host!r}, {tcp}), b'x')")[0] == code, host

    def test_what_does_not_answer_is_told(self) -> None:
        """502 for what is not there, with the reason, and no verdict of the list."""
        audit = Audit()

        def resolver(host: str, port: int) -> list[str]:
            if host == "missing.test":
                raise OSError("no such name")
            return ["127.0.0.1"]

        with echo() as tcp:
            pass  # nobody listens there now
        with self.guarded(f"*.test:{tcp}", resolver=resolver, audit=audit) as session:
            assert inside(session, f"through(connect('a.test', {tcp}), b'')")[0] == 502
            assert inside(session, f"through(socks('a.test', {tcp}), b'')")[0] == 5
            status, text = inside(session, f"fetch('http://missing.test:{tcp}/')")
            assert (status, "does not resolve" in text) == (502, True)
            assert [event.verdict for event in audit.wait(3)] == ["failed"] * 3

    def test_a_resolver_that_hangs_hangs_nobody(self) -> None:
        """504 at the connect_timeout; what needs no name goes on meanwhile."""
        free = threading.Event()

        def resolver(host: str, port: int) -> list[str]:
            free.wait(60)
            return ["127.0.0.1"]

        try:
            with echo() as tcp:
                session = self.guarded(f"slow.test:{tcp}", f"127.0.0.1:{tcp}", resolver=resolver, connect_timeout=0.5)
                with Stopwatch() as watch:
                    assert inside(session, f"through(connect('slow.test', {tcp}), b'')")[0] == 504
                assert watch.seconds < allowed(5)
                assert inside(session, f"through(connect('127.0.0.1', {tcp}), b'x')") == [200, "x"]
        finally:
            free.set()

    def test_much_arrives_whole(self) -> None:
        """Both ways, by each protocol, with sizes that fill every buffer."""
        size = 3_000_000
        with pages() as web, echo() as tcp, self.guarded(f"web.test:{web}", f"tcp.test:{tcp}") as session:
            same = f"hashlib.sha256(fetch('http://web.test:{web}/big?{size}')[1].encode('latin-1')).hexdigest()"
            expected = f"hashlib.sha256(pattern({size})).hexdigest()"
            assert inside(session, f"{same} == {expected}")
            assert inside(session, f"fetch('http://web.test:{web}/post', pattern({size}))[1] == {expected}")
            chunks = f"iter([pattern({size}), b'', pattern(5)])"
            whole = f"hashlib.sha256(pattern({size}) + pattern(5)).hexdigest()"
            assert inside(session, f"fetch('http://web.test:{web}/post', {chunks})[1] == {whole}")
            # An echo that is not read while it is written to holds what its buffers take: less than this.
            echoed = f"through(socks('tcp.test', {tcp}), pattern(60000))[1]"
            assert inside(session, f"{echoed} == pattern(60000).decode('latin-1')")
            assert inside(session, f"fetch('http://web.test:{web}/chunked')") == [200, "one two three"]

    def test_one_connection_carries_several_requests(self) -> None:
        """Keep-alive towards the sandbox, also where the requests come all at once."""
        audit = Audit()
        with pages() as web, self.guarded(f"web.test:{web}", audit=audit) as session:
            text = "".join(request(web, path) for path in ("/one", "/two"))
            answer = inside(session, f"raw({text + request(web, '/three', 'Connection: close')!r})")
            assert [answer.count(f"hello from /{path}") for path in ("one", "two", "three")] == [1, 1, 1]
            assert answer.count("HTTP/1.1 200") == 3
            head = request(web, "/x", "Connection: close", method="HEAD")
            assert "1000000" in inside(session, f"raw({head!r})")
            audit.wait(4)

    def test_many_at_once(self) -> None:
        """Each has its own answer."""
        audit = Audit()
        program = """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    urls = [f"http://web.test:%d/{n}" for n in range(100)]
    print(sum(pool.map(lambda url: fetch(url) == (200, "hello from /" + url.rpartition("/")[2]), urls)))
"""
        with pages() as web, self.guarded(f"web.test:{web}", audit=audit) as session:
            assert run_inside(session, program % web) == "100\n"
            assert {event.verdict for event in audit.wait(100)} == {"allowed"}

    def test_a_connection_is_cut_at_its_bytes(self) -> None:
        """`max_connection_bytes`: of both directions together, and not one more."""
        audit = Audit()
        with echo() as tcp, self.guarded(f"tcp.test:{tcp}", max_connection_bytes=10_000, audit=audit) as session:
            assert inside(session, f"len(through(connect('tcp.test', {tcp}), pattern(5000))[1])") == 5000
            program = f"""[code, sock] = connect('tcp.test', {tcp})
sock.sendall(pattern(6000))
try: got = len(whole(sock))
except ConnectionResetError: got = 'reset'
print(json.dumps(got))"""
            assert run_inside(session, program).strip() in ('"reset"', *map(str, range(4001)))
            first, second = audit.wait(2)
            assert (first.verdict, first.bytes_out + first.bytes_in) == ("allowed", 10_000)
            assert (second.verdict, second.bytes_out + second.bytes_in) == ("cut", 10_000)

    def test_a_session_is_cut_at_its_bytes(self) -> None:
        """`max_total_bytes`: then there is nothing more."""
        audit = Audit()
        with echo() as tcp, self.guarded(f"tcp.test:{tcp}", max_total_bytes=2_000, audit=audit) as session:
            assert inside(session, f"len(through(connect('tcp.test', {tcp}), pattern(1000))[1])") == 1000
            status, text = inside(session, f"through(connect('tcp.test', {tcp}), b'x')")
            assert (status, "max_total_bytes" in text) == (403, True)
            assert [event.verdict for event in audit.wait(2)] == ["allowed", "cut"]

    def test_an_audit_that_fails_stops_nothing(self) -> None:
        """It is logged."""
        seen = []

        def audit(event: EgressEvent) -> None:
            seen.append(event)
            raise RuntimeError("the audit's own trouble")

        with echo() as tcp, self.guarded(f"tcp.test:{tcp}", audit=audit) as session:
            for _ in range(3):
                assert inside(session, f"through(connect('tcp.test', {tcp}), b'x')") == [200, "x"]
            wait_until(lambda: len(seen) == 3, "each is told")

    def test_programs_are_told_of_the_proxy(self) -> None:
        """By the variables that they know; what the caller says counts more."""
        with self.create("python", network=allowing(), env={"HTTPS_PROXY": "http://mine:1"}) as session:
            env = dict(line.split("=", 1) for line in session.exec("env").check().stdout.splitlines())
            proxy = env["HTTP_PROXY"]
            assert proxy.startswith("http://127.0.0.1:")
            for name in ("http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
                assert env[name] == proxy
            assert env["NO_PROXY"] == env["no_proxy"] == "localhost,127.0.0.1,::1"
            assert env["HTTPS_PROXY"] == "http://mine:1"
            result = session.exec("sh", ["-c", 'echo "$HTTP_PROXY"'], env={"HTTP_PROXY": ""}).check()
            assert result.stdout == "\n"
        with self.create() as session:
            assert "PROXY" not in session.exec("env").check().stdout.upper()

    @needs(Feature.ISOLATION)
    @pytest.mark.parametrize(
        "way",
        [
            "tcp('1.1.1.1', 443)",
            "udp('8.8.8.8', 53)",
            "tcp('169.254.169.254', 80)",
            "socket.getaddrinfo('example.com', 80)",
        ],
    )
    def test_there_is_no_other_way(self, way: str) -> None:
        """For the engine it is network none."""
        with self.guarded() as session:
            assert tried(session, way) == "refused"

    def test_two_sessions_have_a_proxy_each(self) -> None:
        """Also where they share one network, and its usual port is taken."""
        with echo() as tcp, self.guarded(f"tcp.test:{tcp}") as one, self.guarded(f"other.test:{tcp}") as two:
            assert inside(one, f"through(connect('tcp.test', {tcp}), b'x')") == [200, "x"]
            assert inside(two, f"through(connect('other.test', {tcp}), b'x')") == [200, "x"]
            assert inside(two, f"through(connect('tcp.test', {tcp}), b'x')")[0] == 403

    def test_a_package_is_downloaded_through_it(self) -> None:
        """An index that lists one package, and its file with the digest that the index tells."""
        with pages() as web, self.guarded(f"index.test:{web}") as session:
            index = f"http://index.test:{web}/simple/"
            page = inside(session, f"fetch('{index}{PACKAGE}/')")[1]
            assert WHEEL in page
            data = f"fetch('http://index.test:{web}/files/{WHEEL}')[1].encode('latin-1')"
            assert inside(session, f"hashlib.sha256({data}).hexdigest()") in page

    @needs(Feature.DETACHED)
    def test_whoever_attaches_is_the_way_out(self) -> None:
        """The list is known from the session; what can be called is given again."""
        with echo() as tcp:
            session = self.lasting(image="python", detached=True, network=allowing(f"tcp.test:{tcp}"))
            assert inside(session, f"through(connect('tcp.test', {tcp}), b'x')") == [200, "x"]
            session.detach()
            audit = Audit()
            session = self.attached_when_free(session.id, network=allowing(f"tcp.test:{tcp}", audit=audit))
            assert inside(session, f"through(connect('tcp.test', {tcp}), b'y')") == [200, "y"]
            audit.wait(1)
            session.detach()
            session = self.attached_when_free(session.id)
            assert inside(session, "through(connect('denied.test', 443), b'')")[0] == 403
            with pytest.raises(ConfigError, match="network"):
                self.attached(session.id, network=Network.bridge())

    @needs(Feature.RESUME)
    def test_a_resumed_session_has_its_way_out(self) -> None:
        """As an attached one."""
        with echo() as tcp:
            network = allowing(f"tcp.test:{tcp}")
            session = self.lasting(image="python", keep=True, network=network)
            session.stop()
            session = self.resumed(session.id, network=network)
            assert inside(session, f"through(connect('tcp.test', {tcp}), b'x')") == [200, "x"]
            assert inside(session, "through(connect('denied.test', 443), b'')")[0] == 403


class HostileToTheProxy(Guarded):
    """What a sandbox may send instead of a request."""

    def test_what_is_no_request_is_refused_and_the_next_is_served(self) -> None:
        """Each gets an answer or an end, at once; the session and its proxy go on."""
        post, chunked, chunks = "POST", "Transfer-Encoding: chunked", "0\r\n\r\n"
        audit = Audit()
        with pages() as web:
            requests = {
                "no HTTP": "what is this\r\n\r\n",
                "lines that end in LF": request(web, "/").replace("\r\n", "\n"),
                "a CR in a header": request(web, "/", "A: b\rc"),
                "a header in two lines": request(web, "/", "A: b\r\n c"),
                "two lengths": request(web, "/", "Content-Length: 1", "Content-Length: 2", method=post, body="ab"),
                "a length and chunks": request(web, "/", "Content-Length: 5", chunked, method=post, body=chunks),
                "another encoding": request(web, "/", chunked.replace(" ", " gzip, "), method=post, body=chunks),
                "chunks that are none": request(web, "/", chunked, method=post, body="zz\r\n"),
                "no absolute form": "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n",
                "a user in the URL": request(web, "/").replace("web.test", "web.test@evil.test"),
                "too many headers": request(web, "/", "A: " + "b" * 70_000),
                "a NUL": request(web, "/\0"),
            }
            with self.guarded(f"web.test:{web}", audit=audit) as session:
                for name, text in requests.items():
                    answer = inside(session, f"raw({text!r})")
                    assert answer.startswith(("HTTP/1.1 400 ", "HTTP/1.1 431 ")), name
                assert inside(session, f"fetch('http://web.test:{web}/x')") == [200, "hello from /x"]
                events = audit.wait(len(requests) + 1)
                assert [event.verdict for event in events] == ["failed"] * len(requests) + ["allowed"]

    def test_a_header_of_the_hop_goes_no_further(self) -> None:
        """And the Host is the one that was judged."""
        with pages() as web, self.guarded(f"web.test:{web}") as session:
            hop = (
                "Proxy-Authorization: a",
                "Connection: close, X-Mine",
                "X-Mine: b",
                "TE: trailers",
                "Upgrade: h2c",
            )
            answer = inside(session, f"raw({request(web, '/headers', *hop, 'X-Kept: c')!r})")
            headers = dict(json.loads(answer.partition("\r\n\r\n")[2]))
            assert headers == {"host": f"web.test:{web}", "x-kept": "c", "connection": "close"}
