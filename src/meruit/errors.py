"""Every exception of Meruit, in one tree.

    MeruitError
      # Documents, criteria and plugins
      MissingExtra, PluginSignature, PluginExit, ExtractorConflict, OutsideFolder
      UnknownName: RulesContradictTerms
      AuthorError: AssertionFaults, InvalidAddress, InvalidAccount
      DocumentError: UnreadableFile, ConfigError
        CriteriaError: BrokenCriteria, Unavailable, UnsupportedCriteria
      # Store, events and log
      Unreachable, IdempotencyConflict, KeyInUse, WebhookRejected, LeaseLost
      StoreError: StoreUnavailable, EvidenceDamaged, KeptCheckpointDamaged, KeyNotAdmitted, UnknownLayout
        TooManyEntries
        LogRewritten: LogRolledBack
      NotFound: UnknownAccount
      # HTTP: the service, and reading other systems
      BodyError, ApiProblem, OutboundFailed, OutboundRefused
      HttpRefusal: NoSuchPath
      ServerFailed: PortUnavailable
      SourceError: HttpError, UnsupportedInteraction, ResponseFailed
      # Judging
      VerificationRefusal, BatchUnsupported, UnknownFormulaValue, ContextError, SandboxError, SandboxInsecure,
      UnknownJudge, UnreadableAnswer
      # Contracts and governance
      BadAmount, NoTriesLeft, RuleFailed, CanaryShown, BadRunId, NullAgentPasses
      WrongState: RecordTampered
      AmountTooLarge: BalanceTooLarge
      # Token usage
      MeteringError, InvalidUsage, InvalidUsageReport, UsageRunEnded, UsageRunOpen, NothingToAcknowledge,
      PriceAlreadyFrozen, AccountLeaseConflict
      FetchFailed: PagesChanged, ProviderRefused, ResponseTooLarge
      # The gate
      AgentError, BudgetError, ToolError, VerifierError, CouldNotVerify, VerificationExhausted,
      VerificationWaiting, SubmissionConflict, AgentRunConflict, RunCancelled, RunFenced, WorkerRefused,
      ModelRefused, UnreadableChatReply, ScriptOver
      # Evaluations, reviews, benchmarks and reports
      TargetFailed, CostLimitReached, EvaluationConflict, NotComparable, CriteriaNotMet, InvalidCase,
      NoCases, ImportDamaged, ImportFormatUnknown, ImportWithoutClaims, ReviewConflict, InvalidReview, BenchmarkTaken,
      BenchmarkChanged, BadBenchmark, BenchmarkInUse, TaskRunStateError, ReportError
      # Audit
      LogCheckStopped, BundleFlaw, StatementError, NoteError, WitnessUnusable, WitnessRefusal, LogContradiction,
      ProofUnavailable
      # Playgrounds
      NotLoggedIn, UnknownPlayground, AlreadyServed, TooManyPlaygrounds, PlaygroundFull, PlaygroundRefusal,
      SeedError, FhirRefusal, InvalidPhoneScript, ProviderRefusal, PriorAuthNotAllowed, BadPatch, TooDeep
    Exception
      # Raised by authors, or raised and caught inside one capability
      JsonSyntaxError, RejectedJson, DocumentUnreadable, UnreadableContent, SignInNeeded, SourceNotRead,
      ConfinementError, MetricRejected, VerificationRejected, SuspendRun, OutOfTime, EventRejected,
      VersionOvertaken
    ValueError
      NotJsonSerializable

A name before a colon is the parent of the names after it and of the lines that are indented below it.
A MeruitError means that the caller asked for something that cannot be done; its message says what to do next.
Each has a `code` that never changes, for programs, and an HTTP `status`. Failed work is a verdict and a system that is
down makes a criterion indeterminate; neither is an exception.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple, Self

HEAD_BYTES = 64
"""How many bytes of unreadable content an error shows."""
EXTRA_OF = {
    **dict.fromkeys(("cel_expr_python", "pydantic_monty"), "custom"),
    "asyncssh": "playground",
    "pypdf": "checks",
    **dict.fromkeys(("polars", "pyarrow"), "bulk"),
    "numpy": "reconcile",
    "psycopg": "postgres",
    "dbos": "cluster",
    "ray": "ray",
    "zstandard": "imports",
}
"""The extra that installs an optional package."""
FIRST_EXIT_CODE = 10
"""Exit code of `meruit audit verify` when its first step fails."""


class Problem(NamedTuple):
    """One thing wrong with a file, and where."""

    where: str
    """The path inside the document, as `criteria[2].threshold`; empty for the whole."""
    message: str
    line: int | None = None
    code: str = ""
    """Of the finding, where lint proved it; empty otherwise."""

    def __str__(self) -> str:
        """`line 7, criteria[2].threshold: … [never_met]`."""
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.where) if part)
        text = f"{self.message} [{self.code}]" if self.code else self.message
        return f"{place}: {text}" if place else text


class MeruitError(Exception):
    """The caller asked for something that cannot be done."""

    code: str = "error"
    """A stable slug that programs compare."""
    status: int = 500
    """The HTTP status of the reply. 500 is an internal error, and no client sees its message."""
    problems: tuple[Problem, ...] = ()
    """What is wrong and where, when the error lists several problems."""
    retry_after_s: int | None = None
    """When a client may retry; the header Retry-After."""

    @property
    def client_detail(self) -> str:
        """The `detail` of an HTTP reply about it."""
        return str(self)


# Documents, criteria and plugins.


class MissingExtra(MeruitError):
    """An optional package is not installed; the message names the extra to install."""

    code = "missing_extra"
    status = 501

    @classmethod
    def of(cls, missing: ImportError) -> Self | None:
        """Name the extra that brings a missing package; None for a package that no extra brings."""
        package = (missing.name or "").partition(".")[0].replace("-", "_")
        extra = EXTRA_OF.get(package)
        if extra is None:
            return None
        return cls(f"this needs the package {package}, which is not installed: pip install 'meruit[{extra}]'")


class UnknownName(MeruitError):
    """No plugin has this name."""

    code = "unknown_name"


class PluginSignature(MeruitError):
    """A plugin's function does not take the arguments that it is called with."""

    code = "plugin_signature"


class PluginExit(MeruitError):
    """A plugin tried to end the program."""

    code = "plugin_exit"


class ExtractorConflict(MeruitError):
    """Two extractors claim one metric name."""

    code = "extractor_conflict"


class AuthorError(MeruitError):
    """A criterion asks for something that cannot be computed as written."""

    code = "author_error"


class AssertionFaults(AuthorError):
    """An assertion is not valid for its check; lists each fault with its path inside the assertion."""

    code = "assertion_faults"

    def __init__(self, faults: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "; ".join(f"{'.'.join(map(str, place))}: {why}" if place else why for place, why in self.faults)
        )


class DocumentError(MeruitError):
    """A file is not valid; lists every problem at once."""

    code = "bad_document"
    status = 400

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.name = name
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{name}: {problem}" for problem in self.problems))

    @property
    def client_detail(self) -> str:
        """How many problems there are; the reply lists them."""
        count = len(self.problems)
        return "one problem was found" if count == 1 else f"{count} problems were found"


class UnreadableFile(DocumentError):
    """A file cannot be read: it does not exist, or the system does not let us read it."""

    code = "unreadable_file"


class ConfigError(DocumentError):
    """The configuration sets something that this version does not support."""

    code = "bad_config"


class CriteriaError(DocumentError):
    """The criteria ask for something that cannot be judged."""

    code = "bad_criteria"
    status = 400


class BrokenCriteria(CriteriaError):
    """Lint proves that the criteria cannot be meant; each problem has the code of its finding."""

    code = "broken_criteria"

    @property
    def client_detail(self) -> str:
        """What to do next."""
        codes = ", ".join(dict.fromkeys(problem.code for problem in self.problems))
        return f"these criteria are proven wrong; correct them, or accept the findings with accept_findings: [{codes}]"


class Unavailable(CriteriaError):
    """The criteria are valid, but this installation cannot do what they ask."""

    code = "unavailable_here"
    status = 422

    @property
    def client_detail(self) -> str:
        """Why all of its problems are problems."""
        return "the criteria are valid, but this installation does not support what they ask for"


class UnsupportedCriteria(CriteriaError):
    """The criteria can be read, but their code or assertions do not run."""

    code = "unsupported_criteria"
    status = 422

    @property
    def client_detail(self) -> str:
        """Why all of its problems are problems."""
        return "the criteria can be read, but their code or assertions do not run"


class OutsideFolder(MeruitError):
    """A file names another one outside its own folder."""

    code = "outside_folder"
    status = 422


class JsonSyntaxError(Exception):
    """The text is not valid JSON."""

    def __init__(self, message: str, line: int) -> None:
        self.line = line
        super().__init__(f"not valid JSON: {message}")


class RejectedJson(Exception):
    """A JSON document holds a value that is not accepted; caught where documents are read."""


class DocumentUnreadable(Exception):
    """The document cannot be read any further."""

    def __init__(self, message: str, line: int | None = None) -> None:
        self.problem = Problem(where="", message=message, line=line)
        super().__init__(message)


class UnreadableContent(Exception):
    """Content that is not valid in the format it was sent as."""

    def __init__(self, why: str, offset: int, head: str) -> None:
        super().__init__(f"{why}, at byte {offset}; it begins with {head!r}")
        self.why = why
        self.offset = offset
        self.head = head
        """The first bytes, the unprintable ones escaped."""

    @classmethod
    def at(cls, why: str, content: bytes, offset: int) -> Self:
        """What is wrong with the content, and at which byte."""
        return cls(why, offset, content[:HEAD_BYTES].decode("latin-1").encode("unicode_escape").decode("ascii"))


# Store, events and log.


class Unreachable(MeruitError):
    """Another system did not answer; a retry may help."""

    code = "unreachable"


class StoreError(MeruitError):
    """The store cannot do this; the message says what to do next."""

    code = "store_error"


class EvidenceDamaged(StoreError):
    """A stored piece of evidence is gone, or no longer what its address says."""


class StoreUnavailable(StoreError, Unreachable):
    """The database did not answer; a retry may help."""

    code = "unavailable"
    status = 503
    retry_after_s = 1

    @property
    def client_detail(self) -> str:
        """What to do next; the message may name the database."""
        return "the database does not answer; retry, with the same Idempotency-Key if you sent one"


class KeyNotAdmitted(StoreError):
    """The signing key of this data folder is not admitted by the log; reading works, nothing is written or signed."""

    code = "key_not_admitted"
    status = 503


class LogRewritten(StoreError):
    """The audit log is not the one that was signed: the database was changed from outside; nothing is written."""

    code = "log_rewritten"
    status = 503

    def __init__(self, message: str) -> None:
        super().__init__(
            f"the audit log was changed from outside: {message}. Nothing is written or signed; "
            "run `meruit audit check`, and restore the database from a copy"
        )


class LogRolledBack(LogRewritten):
    """The audit log is shorter than this data folder knows: an old copy was restored, or entries were deleted."""

    code = "log_rolled_back"

    def __init__(self, found: int, known: int) -> None:
        StoreError.__init__(
            self,
            f"the audit log has {found:,} entries, and this data folder knows {known:,}: an older copy of the database "
            "was restored, or its newest entries were deleted. Nothing is written or signed. If you restored a copy, "
            "stop every process that uses this data folder, run `meruit db accept-restored`, and start them again; if "
            "not, restore the newest copy",
        )


class KeptCheckpointDamaged(StoreError):
    """The file with the newest checkpoint of this data folder cannot be read; nothing is written or signed."""

    code = "kept_checkpoint_damaged"
    status = 503

    @property
    def client_detail(self) -> str:
        """What to do next; the message names a file of the server."""
        return "the data folder's copy of the newest checkpoint cannot be read; the operator has to restore it"


class UnknownLayout(StoreError):
    """The tables have a layout that this version neither uses nor can upgrade."""

    code = "unknown_layout"


class TooManyEntries(StoreError):
    """A contract has more log entries than a bundle can hold."""

    code = "too_many_entries"
    status = 409


class NotFound(MeruitError):
    """No such record, or the caller may not see it; the reply does not say which."""

    code = "not_found"
    status = 404


class UnknownAccount(NotFound):
    """No account of the ledger has this name; the message has the nearest."""

    code = "unknown_account"


class IdempotencyConflict(MeruitError):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"
    status = 422


class KeyInUse(MeruitError):
    """Another request with the same idempotency key is being served."""

    code = "still_running"
    status = 409


class WebhookRejected(MeruitError):
    """The webhook cannot be created: an unknown event type, or too many webhooks."""

    code = "bad_webhook"
    status = 400


class LeaseLost(MeruitError):
    """Another process holds the delivery lease; it delivers what this one did not finish."""

    code = "lease_lost"


# HTTP: the service, and reading other systems.


class BodyError(MeruitError):
    """The request body is not the JSON that the route takes; names fields and positions, never values."""

    code = "bad_body"
    status = 400

    def __init__(self, message: str, problems: Iterable[Problem] = (), *, reason: str = "invalid") -> None:
        self.problems = tuple(problems)
        self.reason = reason
        """A slug: `invalid`, `empty`, `not_json`, `duplicate_key`, `too_deep` or `too_long`."""
        super().__init__(message)


class ApiProblem(MeruitError):
    """A refused request, with everything that the reply says about it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        title: str | None = None,
        errors: Iterable[Problem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.code = code
        """A short slug that programs compare; the reply's `type` is made of it."""
        self.detail = detail
        self.title = title if title is not None else HTTPStatus(status).phrase
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        super().__init__(detail)


class HttpRefusal(MeruitError):
    """What the web layer itself refuses: a method, a parameter, or a body that is too large."""

    code = "refused"

    def __init__(
        self, status: int, *, problems: Iterable[Problem] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.problems = tuple(problems)
        """What is wrong with parameters."""
        self.headers = dict(headers or {})
        super().__init__(HTTPStatus(status).phrase)


class NoSuchPath(HttpRefusal):
    """No route has this path."""

    def __init__(self) -> None:
        super().__init__(404)


class VersionOvertaken(Exception):
    """Another process rescored or erased an outcome meanwhile."""


class SignInNeeded(Exception):
    """A browser must sign in first; the console leads it there."""


class ServerFailed(MeruitError):
    """The service could not start; the log says why."""

    code = "server_failed"


class PortUnavailable(ServerFailed):
    """The service cannot listen on the host and port."""

    code = "port_unavailable"


class SourceError(MeruitError):
    """A system could not be read completely; the message says what, where and what to do."""

    code = "source_error"

    def __init__(self, sentence: str, *, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(sentence)
        self.again = again
        """Whether asking again may help."""
        self.wait_s = wait_s
        """How long the system asked us to wait before that."""


class HttpFailure(StrEnum):
    """At which point a request over HTTP failed."""

    ADDRESS = "address"
    """The URL is not valid or must not be called."""
    CREDENTIAL = "credential"
    """The token could not be fetched or cannot be sent."""
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    BROKEN_OFF = "broken_off"
    """The connection ended in the middle of the reply."""
    TOO_LARGE = "too_large"
    ENCODED = "encoded"
    """The reply is compressed although the request forbids it."""
    UNAUTHORIZED = "unauthorized"
    REDIRECT = "redirect"
    BUSY = "busy"
    """A status that asks to try again later."""


class HttpError(SourceError):
    """A request over HTTP did not succeed."""

    code = "http_error"

    def __init__(self, reason: HttpFailure, sentence: str, *, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(sentence, again=again, wait_s=wait_s)
        self.reason = reason


class UnsupportedInteraction(SourceError):
    """The server does not support the request."""

    code = "unsupported_interaction"


class SourceNotRead(Exception):
    """A source that a `let` needs could not be read; caught where the assertion is judged."""

    # Any: a Missing, which is defined above this module.
    def __init__(self, missing: Any) -> None:
        self.missing = missing
        super().__init__(str(missing))


class AddressFault(StrEnum):
    """What is wrong with an address of another system."""

    SYNTAX = "syntax"
    TOO_LONG = "too_long"
    SCHEME = "scheme"
    """The scheme is not one that this kind of source is read over."""
    CREDENTIALS = "credentials"
    """A user or a password is part of the URL."""
    HOST = "host"
    NUMERIC_HOST = "numeric_host"
    PORT = "port"
    QUERY = "query"
    NOT_PUBLIC = "not_public"
    """The host has an address that is not public."""
    LOGIN = "login"
    """The user, or the password or key, is missing."""
    HOST_KEY = "host_key"
    """The key that identifies the server is missing."""
    NOT_ALLOWED = "not_allowed"
    """Only configured sources may be read here."""
    NOT_CONFIGURED = "not_configured"
    """No source is configured under this name."""
    OTHER_KIND = "other_kind"
    """The configured source is of another kind."""


class InvalidAddress(AuthorError):
    """The address of a system to read is not valid."""

    def __init__(self, fault: AddressFault, sentence: str) -> None:
        super().__init__(sentence)
        self.fault = fault


class OutboundFailed(MeruitError):
    """The other side did not answer; a retry may help."""

    code = "outbound_failed"


class OutboundRefused(MeruitError):
    """A URL that must never be called; a retry does not help."""

    code = "outbound_refused"

    def __init__(self, sentence: str, fault: AddressFault | None = None) -> None:
        super().__init__(sentence)
        self.fault = fault


# Judging.


class VerificationRefusal(MeruitError):
    """Work that cannot be judged at all; the result has the verdict `error`."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class BatchUnsupported(MeruitError):
    """These criteria or columns cannot be judged column by column; judge them one by one."""

    code = "batch_unsupported"


class UnknownFormulaValue(MeruitError):
    """A formula names a value that this state does not have."""

    code = "unknown_formula_value"


class ContextError(MeruitError):
    """The work cannot be passed into a sandbox."""

    code = "bad_context"
    too_large: bool = False
    """Whether it could be passed in if it were smaller."""


class Failure(StrEnum):
    """Why user code returned no numbers. Each makes the criterion indeterminate: not a pass, not the agent's fault."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASHED = "crashed"
    """The code raised an exception, exited, or crashed its worker."""
    RESULT_REJECTED = "result_rejected"
    """The code returned something else than a few finite numbers."""
    UNSUPPORTED_CONSTRUCT = "unsupported_construct"
    """The tier cannot run what is written."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs on the same work differ."""
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """The tier does not run here: the machine lacks a limit, or the operator does not allow the tier."""


class SandboxError(MeruitError):
    """A call of user code ended without numbers; `Sandbox` turns it into a `SandboxResult`."""

    code = "sandbox_error"

    def __init__(self, failure: Failure, message: str, where: str = "") -> None:
        self.failure = failure
        self.where = where
        """The line of the user's code, as ` (line 2)`; empty where it is not known."""
        super().__init__(message)


class SandboxInsecure(MeruitError):
    """The sandbox does not confine code on this machine."""

    code = "sandbox_insecure"


class ConfinementError(Exception):
    """The kernel, or a container around this process, refuses a limit of the sandbox."""


class MetricRejected(Exception):
    """The sandbox refuses user code or its result; the text begins with the failure's name."""


class UnknownJudge(MeruitError):
    """The settings name no such judge, or its question is not valid."""

    code = "unknown_judge"
    status = 400


class UnreadableAnswer(MeruitError):
    """A model judge's answer does not have the form that was asked for; caught where votes are made."""

    code = "unreadable_answer"


# Contracts and governance.


class WrongState(MeruitError):
    """The contract's state does not allow this transition; nothing was changed."""

    status = 409

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class RecordTampered(WrongState):
    """A record is not what the audit log commits to: the database was changed from outside; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "record_tampered", f"{message}; run `meruit audit check`, and restore what it names from a copy"
        )


class BadAmount(MeruitError):
    """An amount is not valid here: its form, its currency, or a bound; nothing was changed."""

    status = 422

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class AmountTooLarge(MeruitError):
    """An amount of money is larger than an exact account can hold."""

    code = "too_much"
    status = 422


class BalanceTooLarge(AmountTooLarge):
    """A balance would become larger than an exact account can hold."""

    code = "balance_too_large"
    status = 409


class NoTriesLeft(MeruitError):
    """An agent has used its tries at criteria."""

    code = "no_tries_left"
    status = 403


class RuleFailed(MeruitError):
    """A settlement rule raised an exception, or returned something that is not a bill line."""

    code = "rule_failed"


class RulesContradictTerms(UnknownName):
    """The settlement rules would pay differently from the terms; the message names the missing rule."""

    code = "unknown_rule"
    status = 422


class CanaryShown(MeruitError):
    """A canary string is visible to agents, so quoting it would prove nothing."""

    code = "canary_shown"


class BadRunId(MeruitError):
    """The id of a run does not have the form by which one run is recognised."""

    code = "bad_run_id"


class NullAgentPasses(MeruitError):
    """An agent that does nothing meets the criteria."""

    code = "null_agent_passes"
    status = 422


# Token usage.


class FetchError(StrEnum):
    """Why a request to a provider failed; it is recorded, but is not an observation."""

    AUTH = "auth"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    TIMEOUT = "timeout"
    PARTIAL_PAGE = "partial_page"
    MALFORMED = "malformed"
    CLOCK = "clock"
    NOT_READY = "not_ready"
    """The provider says that it has not counted this period yet."""


class FetchFailed(MeruitError):
    """A request to a provider did not complete; nothing that it returned is used."""

    code = "fetch_failed"

    def __init__(self, kind: FetchError, detail: str, *, at: datetime | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.at = at
        """By the provider's clock, where it said."""


class PagesChanged(FetchFailed):
    """The provider's data changed between two pages; reading from the first page again may help."""

    code = "pages_changed"

    def __init__(self, detail: str, *, at: datetime | None = None) -> None:
        super().__init__(FetchError.PARTIAL_PAGE, detail, at=at)


class ProviderRefused(FetchFailed):
    """The provider rejected the request."""

    code = "provider_refused"

    def __init__(self, detail: str, *, at: datetime | None = None) -> None:
        super().__init__(FetchError.MALFORMED, detail, at=at)


class ResponseTooLarge(FetchFailed):
    """The response is larger than is read; a shorter window may fit."""

    code = "response_too_large"

    def __init__(self, detail: str, *, at: datetime | None = None) -> None:
        super().__init__(FetchError.PARTIAL_PAGE, detail, at=at)


class ResponseFailed(SourceError):
    """A provider's response is a failure; carries what to raise when no retry is left."""

    def __init__(self, failure: FetchFailed, *, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(str(failure), again=again, wait_s=wait_s)
        self.failure = failure


class InvalidAccount(AuthorError):
    """A setting of an account at a provider is not valid."""

    code = "bad_account"

    def __init__(self, setting: str, sentence: str) -> None:
        super().__init__(sentence)
        self.setting = setting
        """Which one: `base_url`, `file`, `key_variable`, or the name of an option."""


class MeteringError(MeruitError):
    """A meter was given an invalid value, or used in the wrong order."""

    code = "bad_metering"

    def __init__(self, sentence: str, code: str = "bad_metering") -> None:
        super().__init__(sentence)
        self.code = code
        """`bad_metering` for an invalid value; `not_open`, `already_open`, `ended`, `nested_step` or `limit`."""


class InvalidUsage(MeruitError):
    """The usage record is not valid."""

    code = "bad_usage"
    status = 422


class InvalidUsageReport(MeruitError):
    """A field of a usage report is not valid; `where` is its path."""

    code = "invalid"
    status = 400

    def __init__(self, where: str, message: str) -> None:
        self.where, self.message = where, message
        self.problems = (Problem(where, message),)
        super().__init__(str(self.problems[0]))


class UsageRunEnded(MeruitError):
    """The run has ended and cannot be changed."""

    code = "wrong_state"
    status = 409


class UsageRunOpen(MeruitError):
    """The run is open and cannot begin again: that would lose what it recorded."""

    code = "wrong_state"
    status = 409


class NothingToAcknowledge(MeruitError):
    """Only a provider count that fell can be acknowledged."""

    code = "wrong_state"
    status = 409


class PriceAlreadyFrozen(MeruitError):
    """A price that was recorded with a run is replaced only with a reason."""

    code = "price_frozen"
    status = 409


class AccountLeaseConflict(MeruitError):
    """Another reconciler holds the lease on the account."""

    code = "account_leased"
    status = 409


# The gate.


class AgentError(MeruitError):
    """The agent is not defined correctly."""

    code = "bad_agent"


class BudgetError(MeruitError):
    """The budget is not valid."""

    code = "bad_budget"


class ToolError(MeruitError):
    """The function cannot be used as a tool."""

    code = "bad_tool"


class VerifierError(MeruitError):
    """The verifier cannot be called as it is written."""

    code = "bad_verifier"


class NotJsonSerializable(ValueError):
    """A value that JSON cannot represent."""


class CouldNotVerify(MeruitError):
    """The verifier itself failed, so the candidate was not judged."""

    code = "could_not_verify"


class VerificationExhausted(MeruitError):
    """No candidate passed, and no more may be submitted."""

    def __init__(self, reason: str, attempts_used: int, message: str = "", code: str | None = None) -> None:
        super().__init__(f"verification ended without a pass ({reason}, {attempts_used} counted): {message}")
        self.reason = reason
        self.attempts_used = attempts_used
        self.message = message
        # None where the verifier gave no code.
        self.code = code  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep every attribute when pickled."""
        return type(self), (self.reason, self.attempts_used, self.message, self.code)


class VerificationRejected(Exception):
    """Raise it in `verify` for a candidate that is not good enough; the model gets the message."""

    def __init__(
        self,
        message: str,
        retryable: bool = True,  # noqa: FBT001, FBT002 - a positional argument of the public signature
        code: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.code = code
        self.metadata = dict(metadata or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without `__init__`: an author's subclass may have other parameters."""
        return _rebuild_rejection, (type(self), self.args), vars(self)


def _rebuild_rejection(kind: type[VerificationRejected], args: tuple[Any, ...]) -> VerificationRejected:
    return kind.__new__(kind, *args)


class VerificationWaiting(MeruitError):
    """The verifier waits for an answer; submit the same candidate again once it is there."""

    code = "verification_waiting"
    status = 409

    # Any: the gate that raised it; not kept when pickled.
    def __init__(self, run_id: str, key: str, note: str = "", gate: Any = None) -> None:
        about = f": {note}" if note else ""
        super().__init__(
            f"run {run_id} waits for an answer{about}. Give it with `await gate.resume(value)`, or, where the gate has "
            f"a store, with `meruit agent resume {run_id} VALUE`"
        )
        self.run_id = run_id
        self.key = key
        self.note = note
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes that another process can use."""
        return type(self), (self.run_id, self.key, self.note)


class SubmissionConflict(MeruitError):
    """The id of a submission was used for another candidate of the run."""

    code = "submission_conflict"
    status = 409

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"submission {submission_id!r} of this run had another candidate; give each submission an id that is "
            "unique in the run, for example the turn and the id of the tool call"
        )
        self.submission_id = submission_id

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the id when pickled."""
        return type(self), (self.submission_id,)


class AgentRunConflict(MeruitError):
    """The agent run's state does not allow this."""

    code = "wrong_state"
    status = 409


class RunCancelled(MeruitError):
    """The run was cancelled."""

    code = "cancelled"
    status = 409


class RunFenced(MeruitError):
    """Another worker owns the run; it repeats what this one did since."""

    code = "fenced"
    status = 409


class SuspendRun(Exception):
    """Leaves a turn that cannot continue now; the loop suspends the run."""

    def __init__(
        self,
        pause_s: float | None,
        waiting_for: str | None = None,
        *,
        error: str | None = None,
        note: str | None = None,
    ) -> None:
        self.pause_s, self.waiting_for, self.error, self.note = pause_s, waiting_for, error, note


class OutOfTime(Exception):
    """An author's function takes longer than its limit."""


class WorkerRefused(MeruitError):
    """The worker cannot start here; the message says why and what to do."""

    code = "worker_refused"


class ModelRefused(MeruitError):
    """The model endpoint rejected the request; a retry does not help."""

    code = "model_refused"


class UnreadableChatReply(MeruitError):
    """The reply is not one of a chat endpoint."""

    code = "unreadable_reply"


class ScriptOver(MeruitError):
    """The scripted model has no more replies."""

    code = "script_over"


# Evaluations, reviews, benchmarks and reports.


class TargetFailed(MeruitError):
    """What was to make the output of a case failed; `retry` says whether another try may help."""

    code = "target_error"
    status = 502

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry


class CostLimitReached(MeruitError):
    """An evaluation has spent what it may; it goes on with a higher limit."""

    code = "cost_limit_reached"
    status = 409


class EvaluationConflict(MeruitError):
    """An evaluation of this name is finished, is about something else, or is being recorded by another process."""

    code = "evaluation_conflict"
    status = 409


class NotComparable(MeruitError):
    """Evaluations have no outputs that can be compared, or too many, or one is not finished."""

    code = "not_comparable"
    status = 409


class CriteriaNotMet(MeruitError, AssertionError):
    """The work that a test made does not meet its criteria."""

    code = "criteria_not_met"


class InvalidCase(MeruitError):
    """A name, tag or content of an evaluation, a dataset or one of their cases cannot be kept."""

    code = "invalid_case"
    status = 422


class NoCases(MeruitError):
    """The data of an evaluation holds no case."""

    code = "no_cases"
    status = 422


class ImportDamaged(MeruitError):
    """A file of another tool is damaged, cut off, or holds no cases."""

    code = "import_damaged"
    status = 400


class ImportFormatUnknown(MeruitError):
    """A file has no format that an importer knows; the message names those that are known."""

    code = "import_format_unknown"
    status = 400


class ImportWithoutClaims(MeruitError):
    """A file claims no verdicts, and no criteria are given to judge its cases."""

    code = "import_without_claims"
    status = 400


class ReviewConflict(MeruitError):
    """A review of this name exists already and asks something else."""

    code = "review_conflict"
    status = 409


class InvalidReview(MeruitError):
    """A review cannot be made as asked, or a label does not fit its review."""

    code = "invalid_review"
    status = 422


class BenchmarkTaken(MeruitError):
    """Another benchmark was published under this name and version."""

    code = "benchmark_taken"
    status = 409


class BenchmarkChanged(MeruitError):
    """Another version of the benchmark was published since the version that an edit starts from."""

    code = "benchmark_changed"
    status = 409


class BadBenchmark(MeruitError):
    """The benchmark cannot be published under this name, or the edit of it cannot be meant."""

    code = "bad_benchmark"
    status = 400


class BenchmarkInUse(MeruitError):
    """Runs of the benchmark have not ended, so it cannot be deleted."""

    code = "benchmark_in_use"
    status = 409


class TaskRunStateError(MeruitError):
    """The task run's state does not allow this."""

    code = "wrong_state"
    status = 409


class ReportError(MeruitError):
    """The report cannot be made."""

    code = "bad_report"


# Audit.


class AuditStep(StrEnum):
    """What is checked, in this order; each step may rely on those before it."""

    BUNDLE = "bundle"
    """It can be read at all."""
    SIGNATURE = "signature"
    """The checkpoints and the statement are signed by the key."""
    WITNESSES = "witnesses"
    """Enough witnesses cosigned the checkpoint."""
    INCLUSION = "inclusion"
    """Every entry is in the log that the checkpoint signs."""
    CONSISTENCY = "consistency"
    """The log of today continues the log of then."""
    SEQUENCE = "sequence"
    """Nothing is left out, added or out of order."""
    BLOBS = "blobs"
    """Criteria, work and results are those that the entries commit to."""
    METRICS = "metrics"
    """The work has the values that the results say."""
    JUDGE = "judge"
    """The values lead to the verdicts."""
    STATEMENT = "statement"
    """The statement says what the latest verdict says."""
    GOVERNANCE = "governance"
    """What was known leads to the flags that were raised."""
    SETTLEMENT = "settlement"
    """The verdicts and the terms lead to what was paid, and no money was made or lost."""

    @property
    def exit_code(self) -> int:
        """How `meruit audit verify` ends when this is the first step that fails."""
        # Codes never change: this step came later than the others, and has the last one.
        steps = [step for step in AuditStep if step is not AuditStep.WITNESSES]
        return FIRST_EXIT_CODE + [*steps, AuditStep.WITNESSES].index(self)


class LogCheckStopped(MeruitError):
    """The service stops before its check of the log has ended."""

    code = "log_check_stopped"


class BundleFlaw(MeruitError):
    """A bundle fails a check at this step."""

    code = "bundle_flaw"

    def __init__(self, step: AuditStep, what: str) -> None:
        self.step = step
        super().__init__(what)


class StatementError(MeruitError):
    """A statement or its envelope is not valid, or the expected key did not sign it."""

    code = "bad_statement"


class NoteError(MeruitError):
    """A key, a note or a checkpoint is not valid, or the expected key did not sign it."""

    code = "bad_note"


class WitnessUnusable(MeruitError):
    """The folder of a witness cannot be used; the message says why."""

    code = "witness_unusable"


class WitnessRefusal(MeruitError):
    """A witness did not cosign a checkpoint; the code says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LogContradiction(MeruitError):
    """A log is not the one that its reader kept: it was rolled back or forked, or its key changed without a proof."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProofUnavailable(MeruitError):
    """A service did not answer with a checkpoint or a proof that can be read."""

    code = "proof_unavailable"


# Playgrounds.


class NotLoggedIn(MeruitError):
    """A page of the portal requires a login; it redirects there."""

    code = "not_logged_in"
    status = 401


class UnknownPlayground(MeruitError):
    """No such playground."""

    code = "not_found"
    status = 404


class AlreadyServed(MeruitError):
    """Another process serves these playgrounds."""

    code = "elsewhere"
    status = 503


class TooManyPlaygrounds(MeruitError):
    """The host serves as many playgrounds as it can."""

    code = "cannot_be_made"
    status = 503


class PlaygroundFull(MeruitError):
    """The change does not fit into the playground's quota and was not made."""

    code = "full"
    status = 507

    def __init__(self, quota_bytes: int, what: str) -> None:
        self.quota_bytes = quota_bytes
        self.what = what
        """What was to be changed."""
        super().__init__(
            f"the playground is full: it may take {quota_bytes:,} bytes, with all that was ever in it, and {what} does "
            "not fit any more; nothing was changed"
        )


class PlaygroundRefusal(MeruitError):
    """A system of the playground rejected a request; carries the reply."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        self.status = status
        self.detail = detail
        self.more = more
        """What a program may want to know beside: an offset, a limit."""
        super().__init__(detail)


class SeedError(MeruitError):
    """A value in a playground's seed cannot be used."""

    code = "bad_seed"


class FhirRefusal(MeruitError):
    """The playground's FHIR server rejected a request; `status` and `code` are those of its OperationOutcome."""

    def __init__(
        self, status: int, code: str, diagnostics: str, *, expression: str | None = None, allow: str | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.diagnostics = diagnostics
        self.expression = expression
        """The path inside the request."""
        self.allow = allow
        """The methods that are allowed, when this one is not."""
        super().__init__(diagnostics)


class EventRejected(Exception):
    """An event of an X12 request is refused; the code of an AAA segment is its argument."""


class InvalidPhoneScript(MeruitError):
    """The script of a phone call is not valid."""

    code = "bad_phone_script"
    status = 422

    def __init__(self, path: tuple[str | int, ...], where: str, fault: str) -> None:
        self.path = path
        """Inside the script."""
        self.fault = fault
        super().__init__(f"{where}: {fault}")


class ProviderRefusal(MeruitError):
    """The billing provider of the playground rejected a request."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.provider_code = code


class PriorAuthNotAllowed(MeruitError):
    """The prior authorisation's status does not allow this."""

    code = "not_allowed"
    status = 409


class BadPatch(MeruitError):
    """The patch cannot be applied to the document."""

    code = "bad_patch"
    status = 422


class TooDeep(MeruitError):
    """The resource is nested too deeply."""

    code = "too_deep"
    status = 422
