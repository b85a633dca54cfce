"""Open the source of a task by its address."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from meruit.errors import AddressFault, AuthorError, InvalidAddress
from meruit.model.environment import SourceKind
from meruit.model.task import TaskSource
from meruit.sources.credentials import SecretToken
from meruit.sources.fhir import FhirSource
from meruit.sources.objects import GOOGLE, FolderSource, GcsSource
from meruit.sources.retry import Source
from meruit.sources.rows import EventsSource, RowsSource
from meruit.sources.sftp import SFTP_PORT, SftpLogin, SftpSource

EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable by which Google's own clients are pointed at an emulator."""
_USER = re.compile(r"//[^/]*@")
_EVENTS = {SourceKind.HL7: "hl7_outbound", SourceKind.X12: "x12_response", SourceKind.VOICE: "voice_turn"}


def open_source(
    asked: TaskSource,
    *,
    client: httpx.AsyncClient,
    environment: Mapping[str, str],
    known: Collection[str] = (),
) -> Source:
    """Return the reader of a source outside the playground; raises InvalidAddress.

    `known` are the keys that an earlier reading found.
    """
    address = asked.at or ""
    where = _split(asked)
    token = _token(asked, environment)
    match asked.kind:
        case SourceKind.FHIR if where.scheme in ("http", "https"):
            return FhirSource(address, asked.types, client=client, token=token, known=known)
        case SourceKind.ROWS if where.scheme in ("http", "https"):
            return RowsSource(
                address, client=client, token=token, key=asked.key, documents=asked.documents, shape=asked.shape
            )
        case SourceKind.HL7 | SourceKind.X12 | SourceKind.VOICE if where.scheme in ("http", "https"):
            return EventsSource(address, client=client, token=token, type=_EVENTS[asked.kind])
        case SourceKind.FILES:
            return _files(asked, where, token, client, environment)
        case _:
            raise _unknown_address(asked)


def _files(
    asked: TaskSource,
    where: SplitResult,
    token: SecretToken | None,
    client: httpx.AsyncClient,
    environment: Mapping[str, str],
) -> Source:
    address = asked.at or ""
    match where.scheme:
        case "gs" if where.netloc:
            # All of the rest is the prefix: names of objects may hold # and ?.
            prefix = address.partition("://")[2].partition("/")[2].strip("/")
            return GcsSource(where.netloc, prefix, client=client, endpoint=_endpoint(environment), token=token)
        case "sftp":
            return _sftp(asked, where, token, environment)
        case "":
            return FolderSource(Path(address))
        case "file" if where.path.startswith("/") and _is_here(where):
            return FolderSource(Path(unquote(where.path)))
        case _:
            raise _unknown_address(asked)


def _split(asked: TaskSource) -> SplitResult:
    """Split the address into its parts."""
    try:
        found = urlsplit(asked.at or "")
        _ = found.port
    except ValueError:
        raise _unknown_address(asked) from None
    return found


def _is_here(where: SplitResult) -> bool:
    return where.netloc in ("", "localhost") and not where.query and not where.fragment


def _unknown_address(asked: TaskSource) -> AuthorError:
    shown = _USER.sub("//", asked.at or "")
    return InvalidAddress(
        AddressFault.SCHEME, f"{shown!r} is not a valid address of a {asked.kind} source; {_WAYS[asked.kind]}"
    )


_HTTP = "write https://…"
_WAYS = dict.fromkeys(SourceKind, _HTTP) | {
    SourceKind.FILES: "write gs://bucket/prefix, sftp://user@host/folder or a folder"
}


def _token(asked: TaskSource, environment: Mapping[str, str]) -> SecretToken | None:
    if asked.token_env is not None:
        return SecretToken.from_environment(asked.token_env, environment)
    return None if asked.token_command is None else SecretToken.from_command(asked.token_command, environment)


def _endpoint(environment: Mapping[str, str]) -> str:
    host = environment.get(EMULATOR, "")
    return GOOGLE if not host else host if "://" in host else f"http://{host}"


def _sftp(
    asked: TaskSource, where: SplitResult, token: SecretToken | None, environment: Mapping[str, str]
) -> SftpSource:
    key = None if asked.key_env is None else SecretToken.from_environment(asked.key_env, environment)
    if where.hostname is None or where.username is None or where.password is not None or (token or key) is None:
        raise InvalidAddress(
            AddressFault.LOGIN,
            "write sftp://user@host/folder, with the password in the variable that token_env names, "
            "or the private key in that of key_env",
        )
    if where.query or where.fragment:
        raise InvalidAddress(AddressFault.QUERY, "in the folder of an SFTP source write %3F for ? and %23 for #")
    if asked.known_hosts is None:
        raise InvalidAddress(
            AddressFault.HOST_KEY, "an SFTP source needs known_hosts: the server's key as OpenSSH writes it"
        )
    login = SftpLogin(unquote(where.username), password=token, key=key, known_hosts=asked.known_hosts)
    return SftpSource(where.hostname, where.port or SFTP_PORT, login=login, root=unquote(where.path) or ".")
