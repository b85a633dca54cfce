"""The one outbound client: it calls what is public, at the address it checked, and reads little."""

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from meruit.errors import AddressFault, OutboundFailed, OutboundRefused
from meruit.sources import http_guard as outbound
from meruit.sources.http_guard import MAX_REPLY_BYTES, Outbound, OutboundReply, check_url

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]


class Handler(BaseHTTPRequestHandler):
    """Answers in the way that the path names."""

    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.path, headers, body))
        try:
            getattr(self, self.path.strip("/").partition("?")[0])()
        except OSError:
            self.close_connection = True

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def ok(self) -> None:
        self.answer(200, b"fine")

    def broken(self) -> None:
        self.answer(503, b"later")

    def moved(self) -> None:
        self.answer(302, Location="/ok")

    def packed(self) -> None:
        self.answer(200, b"\x1f\x8b not really", **{"Content-Encoding": "gzip"})

    def endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"x" * 10_000)

    def silent(self) -> None:
        self.server.released.wait(30)

    def trickle(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.released.wait(0.05):
            self.wfile.write(b"x")

    def garbage(self) -> None:
        self.wfile.write(b"not http at all\r\n\r\n")

    def log_message(self, *args: Any) -> None: ...


class Server(ThreadingHTTPServer):
    """Remembers what it was sent."""

    daemon_threads = False

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    # A client that hangs up, or that refuses our certificate, is what we came to see.
    def handle_error(self, request: Any, client_address: Any) -> None: ...


class Receiver:
    """A local server in a thread of its own."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.server = Server(tls)
        self.seen = self.server.seen
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.released.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def names(*addresses: str, asked: list[tuple[str, int]] | None = None) -> Any:
    """A name server that gives every name these addresses."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        if asked is not None:
            asked.append((host, port))
        return addresses

    return resolve


def post(url: str, content: bytes = b"{}", headers: dict[str, str] | None = None, **options: Any) -> OutboundReply:
    async def go() -> OutboundReply:
        async with Outbound(**{"allowed_networks": LOOPBACK, **options}) as client:
            return await client.post(url, content, headers or {})

    return asyncio.run(go())


def test_bytes_and_headers_arrive(receiver: Receiver) -> None:
    reply = post(f"http://127.0.0.1:{receiver.port}/ok?a=1", b"\x00hello", {"Webhook-Id": "w1"})
    assert reply == OutboundReply(200, b"fine")
    path, headers, body = receiver.seen[0]
    assert (path, body) == ("/ok?a=1", b"\x00hello")
    assert headers["webhook-id"] == "w1"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"


def test_a_name_is_resolved_once_and_stays_in_the_host_header(receiver: Receiver) -> None:
    asked: list[tuple[str, int]] = []
    reply = post(f"http://hooks.example:{receiver.port}/ok", resolve=names("127.0.0.1", asked=asked))
    assert reply.status == 200
    assert asked == [("hooks.example", receiver.port)]
    assert receiver.seen[0][1]["host"] == f"hooks.example:{receiver.port}"


def test_the_system_resolves_by_default(receiver: Receiver) -> None:
    networks = [*LOOPBACK, ipaddress.ip_network("::1/128")]
    assert post(f"http://localhost:{receiver.port}/ok", allowed_networks=networks).status == 200
    with pytest.raises(OutboundRefused, match="not public"):
        post(f"http://localhost:{receiver.port}/ok", allowed_networks=[])


@pytest.mark.parametrize(
    ("path", "reply"), [("broken", OutboundReply(503, b"later")), ("moved", OutboundReply(302, b""))]
)
def test_any_status_is_a_reply_and_no_redirect_is_followed(receiver: Receiver, path: str, reply: OutboundReply) -> None:
    assert post(f"http://127.0.0.1:{receiver.port}/{path}") == reply
    assert len(receiver.seen) == 1


def test_a_reply_is_read_in_part_and_never_unpacked(receiver: Receiver) -> None:
    assert len(post(f"http://127.0.0.1:{receiver.port}/endless").body) == MAX_REPLY_BYTES
    assert post(f"http://127.0.0.1:{receiver.port}/packed").body.startswith(b"\x1f\x8b")


def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert post(f"http://127.0.0.1:{receiver.port}/ok").status == 200


@pytest.mark.parametrize("path", ["silent", "trickle"])
def test_the_whole_call_has_one_limit(receiver: Receiver, path: str) -> None:
    with pytest.raises(OutboundFailed, match=r"127\.0\.0\.1.* 0\.3 s"):
        post(f"http://127.0.0.1:{receiver.port}/{path}", timeout_s=0.3)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_what_cannot_be_reached_may_be_tried_again(receiver: Receiver) -> None:
    with pytest.raises(OutboundFailed, match="ConnectError"):
        post(f"http://127.0.0.1:{closed_port()}/ok")
    with pytest.raises(OutboundFailed, match="RemoteProtocolError"):
        post(f"http://127.0.0.1:{receiver.port}/garbage")
    with pytest.raises(OutboundFailed, match=r"hooks\.example"):
        post("http://hooks.example/secret-path", resolve=names())

    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "unknown")

    with pytest.raises(OutboundFailed, match=r"hooks\.example") as refused:
        post("http://hooks.example/secret-path", resolve=unknown)
    assert "secret" not in str(refused.value)


def test_the_next_address_is_tried(receiver: Receiver) -> None:
    """Nobody listens on the others of our loopback addresses."""
    url = f"http://hooks.example:{receiver.port}/ok"
    assert post(url, resolve=names("127.0.0.2", "127.0.0.3", "127.0.0.1")).status == 200
    unreachable = [f"127.0.0.{n}" for n in range(2, 2 + outbound.MAX_ADDRESSES)]
    with pytest.raises(OutboundFailed, match="ConnectError"):
        post(url, resolve=names(*unreachable, "127.0.0.1"))


NOT_PUBLIC = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.1.1",
    "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254",
    "ff02::1", "fec0::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::8.8.8.8",
    "64:ff9b:1::1", "2002:7f00:1::", "2002:808:808::1", "2001:0:808:808::1", "fe80::1%eth0",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_no_private_address_is_called(address: str) -> None:
    with pytest.raises(OutboundRefused, match="not public"):
        post("http://hooks.example/", resolve=names(address), allowed_networks=[])
    # One bad address among good ones is enough, wherever it stands.
    with pytest.raises(OutboundRefused, match="not public"):
        post("http://hooks.example/", resolve=names(*["8.8.8.8"] * 9, address), allowed_networks=[])
    literal = f"[{address}]" if ":" in address else address
    with pytest.raises(OutboundRefused):
        check_url(f"http://{literal}/")


def test_an_allowed_network_allows_no_disguise_of_it() -> None:
    check_url("http://127.0.0.1:8000/", LOOPBACK)
    with pytest.raises(OutboundRefused):
        check_url("http://[::ffff:127.0.0.1]/", LOOPBACK)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/a?b=c", "http://hooks.example:8080", "https://8.8.8.8/", "https://[2606:4700::1111]/",
        "HTTPS://Hooks.Example./x", "https://bücher.example/", "https://h/?to=a@b", "https://a_b.example/#x@y",
    ],
)  # fmt: skip
def test_ordinary_urls_may_be_registered(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("ftp://h/", AddressFault.SCHEME),
        ("file:///etc/passwd", AddressFault.SCHEME),
        ("//h/", AddressFault.SCHEME),
        ("", AddressFault.SCHEME),
        ("http:///x", AddressFault.HOST),
        ("http:h", AddressFault.HOST),
        ("https://h\x00/", AddressFault.SYNTAX),
        ("https://h:x/", AddressFault.SYNTAX),
        ("https://\ud800/", AddressFault.SYNTAX),
        ("https://h:0/", AddressFault.PORT),
        ("https://h:65536/", AddressFault.PORT),
        ("https://user@h/", AddressFault.CREDENTIALS),
        ("https://user:pass@h/", AddressFault.CREDENTIALS),
        ("https://@h/", AddressFault.CREDENTIALS),
        ("https://h\\@evil.example/", AddressFault.CREDENTIALS),
        ("https://a b/", AddressFault.HOST),
        ("https://a..b/", AddressFault.HOST),
        ("https://%31%32%37.0.0.1/", AddressFault.HOST),
        (f"https://{'a' * 64}.example/", AddressFault.HOST),
        ("http://2130706433/", AddressFault.NUMERIC_HOST),
        ("http://0x7f000001/", AddressFault.NUMERIC_HOST),
        ("http://127.1/", AddressFault.NUMERIC_HOST),
        ("http://0177.0.0.1/", AddressFault.SYNTAX),
        ("http://127.0.0.1./", AddressFault.NUMERIC_HOST),
        (f"https://h/{'a' * 2048}", AddressFault.TOO_LONG),
    ],
)
def test_odd_urls_are_refused(url: str, fault: AddressFault) -> None:
    with pytest.raises(OutboundRefused) as checked:
        check_url(url)
    with pytest.raises(OutboundRefused) as called:
        post(url)
    assert (checked.value.fault, called.value.fault) == (fault, fault)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for hooks.example, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


def test_tls_asks_for_the_name_and_not_the_address(certificate: Path) -> None:
    asked: list[str | None] = []
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    serving.sni_callback = lambda _socket, name, _context: asked.append(name)
    receiver = Receiver(serving)
    trusting = ssl.create_default_context(cafile=str(certificate))
    try:
        url = f"https://hooks.example:{receiver.port}/ok"
        assert post(url, tls=trusting, resolve=names("127.0.0.1")).status == 200
        assert asked == ["hooks.example"]
        assert receiver.seen[0][1]["host"] == f"hooks.example:{receiver.port}"
        for refused, context in (("other.example", trusting), ("hooks.example", None)):
            with pytest.raises(OutboundFailed, match="ConnectError"):
                post(f"https://{refused}:{receiver.port}/ok", tls=context, resolve=names("127.0.0.1"))
        assert len(receiver.seen) == 1
    finally:
        receiver.close()


def test_an_ipv6_address_is_called_as_such() -> None:
    """Where this machine has no IPv6 the call fails in the way of every unreachable address."""
    with pytest.raises(OutboundFailed, match="ConnectError"):
        post(
            f"http://hooks.example:{closed_port()}/ok",
            resolve=names("::1"),
            allowed_networks=[ipaddress.ip_network("::1/128")],
        )
