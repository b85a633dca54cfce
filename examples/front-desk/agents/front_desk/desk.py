"""What somebody at the front desk has at hand: charts, the interface engine, the file drop, two ways to the payer."""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

if TYPE_CHECKING:
    import asyncssh

START, END = b"\x0b", b"\x1c\r"
"""What MLLP puts around a message."""
TIMEOUT_S = 30.0
MAX_PAGES = 100
TRUST = ssl.create_default_context()
"""Made once: reading a machine's certificates takes longer than most of what is done here."""

Json = dict[str, Any]


class Desk:
    """One playground, reached over the protocols that its systems really speak."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        # Straight to the playground, whatever proxies the environment names.
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {given['MERUIT_SECRET']}"},
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=TRUST,
        )

    def __enter__(self) -> Self:
        """Sit down."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave."""
        self._http.close()

    # Charts, over FHIR

    def find(self, kind: str, **parameters: str) -> list[Json]:
        """Every resource that a search finds, page by page."""
        found: list[Json] = []
        url = f"{self._given['MERUIT_FHIR_URL']}/{kind}"
        for _ in range(MAX_PAGES):
            page = _done(self._http.get(url, params=parameters or None)).json()
            found += [entry["resource"] for entry in page.get("entry", [])]
            following = [link["url"] for link in page.get("link", []) if link["relation"] == "next"]
            if not following:
                break
            # The link has the parameters already.
            url, parameters = following[0], {}
        return found

    def read(self, reference: str) -> Json:
        """One resource, as `Patient/john-smith`."""
        found: Json = _done(self._http.get(f"{self._given['MERUIT_FHIR_URL']}/{reference}")).json()
        return found

    def create(self, resource: Json) -> Json:
        """Add a resource to the charts; answers it with its id."""
        made: Json = _done(
            self._http.post(f"{self._given['MERUIT_FHIR_URL']}/{resource['resourceType']}", json=resource)
        ).json()
        return made

    # Any: whatever a resource holds.
    def change(self, reference: str, **fields: Any) -> None:
        """Change fields of a resource, if nobody else did in the meantime."""
        was = self.read(reference)
        tag = {"If-Match": f'W/"{was["meta"]["versionId"]}"'}
        _done(self._http.put(f"{self._given['MERUIT_FHIR_URL']}/{reference}", json=was | fields, headers=tag))

    def delete(self, reference: str) -> None:
        """Remove a resource from the charts."""
        _done(self._http.delete(f"{self._given['MERUIT_FHIR_URL']}/{reference}"))

    # Messages, over MLLP

    def send(self, message: str) -> str:
        """Send an HL7 message; answers the acknowledgement's code."""
        host, _, port = self._given["MERUIT_MLLP"].rpartition(":")
        # MSH-8, which a shared host asks for; it is not kept.
        fields = message.split("|")
        message = "|".join([*fields[:7], self._given["MERUIT_SECRET"], *fields[8:]])
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as line:
            line.sendall(START + message.encode() + END)
            reply = b""
            while not reply.endswith(END) and (more := line.recv(65_536)):
                reply += more
        found = re.search(r"\rMSA\|([A-Z]{2})", reply.decode())
        return found[1] if found else ""

    # Files, over SFTP

    def fetch(self, path: str) -> bytes:
        """The content of a file in the drop."""

        async def fetched(drop: "asyncssh.SFTPClient") -> bytes:
            async with drop.open(path, "rb") as file:
                return await file.read()

        return asyncio.run(self._in_drop(fetched))

    def put(self, path: str, content: bytes, *, rename_to: str | None = None) -> None:
        """Write a file to the drop, under a name for the time being if a final one is given."""

        async def written(drop: "asyncssh.SFTPClient") -> bytes:
            folder = path.rpartition("/")[0]
            if folder:
                await drop.makedirs(folder, exist_ok=True)
            async with drop.open(path, "wb") as file:
                await file.write(content)
            if rename_to is not None:
                await drop.posix_rename(path, rename_to)
            return content

        asyncio.run(self._in_drop(written))

    async def _in_drop(self, act: "Callable[[asyncssh.SFTPClient], Awaitable[bytes]]") -> bytes:
        import asyncssh  # takes a second, and most tasks need no files

        host, _, port = self._given["MERUIT_SFTP"].rpartition(":")
        async with (
            asyncssh.connect(
                host.strip("[]"),
                int(port),
                username=self._given["MERUIT_PLAYGROUND"],
                password=self._given["MERUIT_SECRET"],
                known_hosts=None,
                config=None,
            ) as connection,
            connection.start_sftp_client() as drop,
        ):
            return await act(drop)

    # The payer, over its portal, the clearinghouse and the telephone

    def portal(self) -> "Portal":
        """The payer's portal, signed in."""
        return Portal(self._given["MERUIT_PORTAL_URL"], self._given["MERUIT_SECRET"])

    def ask(self, interchange: str) -> str:
        """Send X12 to the clearinghouse; answers its answer."""
        return _done(self._http.post(self._given["MERUIT_X12_URL"], content=interchange)).text

    def say(self, text: str) -> str:
        """Say something on the telephone; answers what is said in return."""
        reply = _done(self._http.post(f"{self._given['MERUIT_CALL_URL']}/turns", json={"text": text})).json()
        return " ".join(turn["text"] for turn in reply["turns"])


class Portal:
    """The payer's portal as a browser uses it: pages, their forms, and a cookie."""

    def __init__(self, url: str, password: str) -> None:
        self._url = url
        self._http = httpx.Client(timeout=TIMEOUT_S, follow_redirects=True, trust_env=False, verify=TRUST)
        self.submit("login", "login", {"username": "clerk", "password": password})

    def __enter__(self) -> Self:
        """Look at the screen."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the browser."""
        self._http.close()

    def open(self, place: str) -> str:
        """A page."""
        return _done(self._http.get(f"{self._url}/{place}")).text

    def submit(self, page: str, form: str, typed: dict[str, str], **documents: tuple[str, bytes]) -> str:
        """Fill in a form of a page, with a document in one of its fields perhaps; answers the page that follows."""
        token = re.search(r'name="csrf" value="([^"]*)"', self.open(page))
        sent = typed | {"csrf": token[1] if token else ""}
        return _done(self._http.post(f"{self._url}/{form}", data=sent, files=documents or None)).text


def _done(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise RuntimeError(
            f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}"
        )
    return answer
