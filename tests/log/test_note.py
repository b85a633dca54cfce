"""Notes: Go's and C2SP's own keys and texts, and every small change is noticed."""

import base64
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import MeruitError, NoteError
from meruit.log.merkle import EMPTY_ROOT, MAX_SIZE
from meruit.log.note import (
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    Checkpoint,
    SigningKey,
    VerifierKey,
    open_checkpoint,
    open_note,
    strict_base64,
)

# The reference implementation's own example: golang.org/x/mod/sumdb/note.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETER_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
PETER_SIGNED = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
ENOCH_SIGNED = (
    "— EnochRoot rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd1RvMc+QQ=\n"
)
TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"

KEY = SigningKey.generate("example.com/log", bytes(range(32)))
OTHER = SigningKey.generate("example.com/log", bytes(32))
CHECKPOINT = Checkpoint("example.com/log", 5, bytes(range(32)))
NOTE = KEY.sign(CHECKPOINT.text())

roots = st.binary(min_size=32, max_size=32)
origins = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
checkpoints = st.builds(Checkpoint, origins, st.integers(1, MAX_SIZE), roots)
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.just("\n")).map(lambda text: f"{text}\n")


# What was published is what we write and read.


def test_gos_example_is_signed_to_the_letter() -> None:
    key = SigningKey.generate("PeterNeumann", PETER_SEED)
    assert key.vkey == PETER
    assert key.sign(TEXT) == f"{TEXT}\n{PETER_SIGNED}"


@pytest.mark.parametrize("vkey", [PETER, ENOCH])
@pytest.mark.parametrize("signed", [PETER_SIGNED + ENOCH_SIGNED, ENOCH_SIGNED + PETER_SIGNED])
def test_gos_example_is_opened_with_either_key(vkey: str, signed: str) -> None:
    assert open_note(f"{TEXT}\n{signed}", VerifierKey.parse(vkey)) == TEXT


def test_c2sps_example_is_opened() -> None:
    key = VerifierKey.parse("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    note = (
        "This is an example message.\n\n— example.com/foo "
        "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
    )
    assert open_note(note, key) == "This is an example message.\n"


# Keys.


def test_a_published_key_is_read_whole() -> None:
    key = VerifierKey.parse(PETER)
    assert (key.name, key.key_id, key.vkey, len(key.public)) == ("PeterNeumann", "c74f20a3", PETER, 32)


def test_no_part_of_a_published_key_is_a_key() -> None:
    for start in range(len(PETER) + 1):
        for end in range(start, len(PETER) + 1):
            if (start, end) != (0, len(PETER)):
                with pytest.raises(NoteError):
                    VerifierKey.parse(PETER[start:end])


def test_no_changed_character_of_a_published_key_goes_unnoticed() -> None:
    for at, character in enumerate(PETER):
        with pytest.raises(NoteError):
            VerifierKey.parse(PETER[:at] + chr(ord(character) + 1) + PETER[at + 1 :])


@pytest.mark.parametrize(
    ("vkey", "why"),
    [
        ("", "reads `name"),
        ("PeterNeumann", "reads `name"),
        ("PeterNeumann+c74f20a3", "reads `name"),
        ("PeterNeumann+c74f20a3+", "reads `name"),
        ("PeterNeumann+c74f20a3+é", "reads `name"),
        ("PeterNeumann+C74F20A3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "reads `name"),
        ("PeterNeumann+c74f20a4+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "c74f20a3"),
        ("Peter Neumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "no spaces"),
        ("+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "not empty"),
        # Go's two with an id that fits: a key that is too long, an algorithm that is unknown.
        ("PeterNeumann+cc469956+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWBADKEY==", "reads `name|32 bytes"),
        ("PeterNeumann+173116ae+ZRpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "Ed25519"),
        ("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWAAAA", "32 bytes, not 35"),
    ],
)
def test_an_invalid_key_is_refused_with_the_reason(vkey: str, why: str) -> None:
    with pytest.raises(NoteError, match=why):
        VerifierKey.parse(vkey)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a+b", "a\tb", "a\nb", "a\x00b", "a\u00a0b", "a\u2003b", "a\u2028", "\ud800"]
)
def test_a_name_that_a_note_could_not_carry_is_refused(name: str) -> None:
    with pytest.raises(MeruitError, match="plus"):
        SigningKey.generate(name, bytes(32))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_has_one_length(length: int) -> None:
    with pytest.raises(NoteError, match=str(length)):
        SigningKey.generate("a", bytes(length))


@given(roots)
def test_a_key_is_read_back_as_it_was_written(seed: bytes) -> None:
    key = SigningKey.generate("example.com/é", seed)
    again = SigningKey.from_pem("example.com/é", key.to_pem())
    assert again == key
    assert again.sign("text\n") == key.sign("text\n")
    assert VerifierKey.parse(key.vkey) == key.verifier
    assert (key.name, key.key_id) == (key.verifier.name, key.verifier.key_id)


@given(roots)
def test_a_key_is_written_as_others_write_and_read_it(seed: bytes) -> None:
    secret = Ed25519PrivateKey.from_private_bytes(seed)
    assert SigningKey.generate("a", seed).to_pem() == pem_of(secret)
    assert SigningKey.from_pem("a", pem_of(secret).replace(b"\n", b"\r\n")) == SigningKey.generate("a", seed)


def test_the_secret_is_not_shown_and_not_handed_on() -> None:
    shown = f"{KEY!r} {KEY} {[KEY]}"
    for form in (bytes(range(32)).hex(), base64.b64encode(bytes(range(32))).decode(), repr(bytes(range(32)))):
        assert form not in shown
    assert "example.com/log" in shown
    assert "Private" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(KEY)


def pem_of(secret: Ed25519PrivateKey, password: bytes | None = None) -> bytes:
    locked = BestAvailableEncryption(password) if password else NoEncryption()
    return secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no key",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----\n",
        pem_of(Ed25519PrivateKey.from_private_bytes(bytes(32)), password=b"secret"),
    ],
    ids=["empty", "text", "broken", "no base64", "encrypted"],
)
def test_what_is_not_a_plain_private_key_is_refused(pem: bytes) -> None:
    with pytest.raises(NoteError, match="PEM"):
        SigningKey.from_pem("a", pem)


def test_a_key_of_another_kind_is_refused() -> None:
    pem = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(NoteError, match="Ed25519"):
        SigningKey.from_pem("a", pem)


@given(st.binary(), st.binary(max_size=70))
def test_only_the_signature_over_these_bytes_verifies(data: bytes, other: bytes) -> None:
    signature = KEY.sign_bytes(data)
    assert KEY.verifier.verify(data, signature)
    assert not OTHER.verifier.verify(data, signature)
    assert not KEY.verifier.verify(data + b"\x00", signature)
    assert KEY.verifier.verify(data, other) is (other == signature)


# Notes.


@given(texts)
def test_what_is_signed_can_be_opened(text: str) -> None:
    assert open_note(KEY.sign(text), KEY.verifier) == text


@pytest.mark.parametrize("text", ["", "no newline", "a\rb\n", "a\tb\n", "\x00\n", "\x1f\n", "\ud800\n"])
def test_a_text_that_is_not_a_note_is_not_signed(text: str) -> None:
    with pytest.raises(NoteError, match="newline"):
        KEY.sign(text)


def test_every_changed_character_is_noticed() -> None:
    for at, character in enumerate(NOTE):
        for other in {"\n", "A", "=", " ", chr(ord(character) ^ 1)} - {character}:
            with pytest.raises(NoteError):
                open_checkpoint(NOTE[:at] + other + NOTE[at + 1 :], KEY.verifier)


def test_every_missing_or_doubled_character_is_noticed() -> None:
    for at in range(len(NOTE)):
        for changed in (NOTE[:at] + NOTE[at + 1 :], NOTE[: at + 1] + NOTE[at:], NOTE[:at]):
            if changed != NOTE:
                with pytest.raises(NoteError):
                    open_checkpoint(changed, KEY.verifier)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n",
        "\n\n",
        TEXT,
        f"{TEXT}\n",
        f"{TEXT}\n{PETER_SIGNED}"[:-1],
        f"{TEXT}{PETER_SIGNED}",
        f"{TEXT}\n{PETER_SIGNED}\n",
        f"\x01{TEXT}\n{PETER_SIGNED}",
        f"\ud800{TEXT}\n{PETER_SIGNED}",
        f"{TEXT}\n{PETER_SIGNED}".replace("\n", "\r\n"),
        f"{TEXT}\n{PETER_SIGNED}Unexpected line.\n",
        f"{TEXT}\n{PETER_SIGNED.replace('PeterNeumann', 'Bad Name')}",
        f"{TEXT}\n{PETER_SIGNED.replace('PeterNeumann', 'Bad+Name')}",
        f"{TEXT}\n{PETER_SIGNED.replace('PeterNeumann ', ' ')}",
        f"{TEXT}\n{PETER_SIGNED.replace('—', '-')}",
        f"{TEXT}\n{PETER_SIGNED.replace('AM=', 'AN=')}",
        f"{TEXT}\n{PETER_SIGNED.replace('AM=', 'AM')}",
        f"{TEXT}\n{PETER_SIGNED}— Other\n",
        f"{TEXT}\n{PETER_SIGNED}— Other \n",
        f"{TEXT}\n{PETER_SIGNED}— Other é===\n",
        f"{TEXT}\n{PETER_SIGNED}— Other x08gow==\n",
        f"{TEXT}\n" + PETER_SIGNED * (MAX_SIGNATURES + 1),
        f"{'x' * MAX_NOTE_BYTES}\n\n{PETER_SIGNED}",
        f"{'é' * (MAX_NOTE_BYTES // 2)}\n\n{PETER_SIGNED}",
    ],
)
def test_what_is_no_note_is_malformed(note: str) -> None:
    with pytest.raises(NoteError, match="malformed note"):
        open_note(note, VerifierKey.parse(PETER))


def test_as_many_signatures_as_are_allowed_are_read() -> None:
    note = f"{TEXT}\n" + ENOCH_SIGNED * (MAX_SIGNATURES - 1) + PETER_SIGNED
    assert open_note(note, VerifierKey.parse(PETER)) == TEXT


def test_a_note_of_the_greatest_length_is_read() -> None:
    key = VerifierKey.parse(PETER)
    frame = KEY.sign("\n")
    assert open_note(KEY.sign("x" * (MAX_NOTE_BYTES - len(frame.encode())) + "\n"), KEY.verifier)
    with pytest.raises(NoteError, match="at most 1000000 bytes"):
        open_note(KEY.sign("x" * (MAX_NOTE_BYTES + 1 - len(frame.encode())) + "\n"), key)


def test_a_signature_by_another_key_does_not_count() -> None:
    with pytest.raises(NoteError, match=r"EnochRoot\+af0cfe78"):
        open_note(f"{TEXT}\n{PETER_SIGNED}", VerifierKey.parse(ENOCH))


def test_a_key_of_the_same_name_or_the_same_id_is_another_key() -> None:
    with pytest.raises(NoteError, match=OTHER.verifier.key_id):
        open_note(NOTE, OTHER.verifier)
    misnamed = PETER_SIGNED.replace("PeterNeumann", "CarmenSandiego")
    with pytest.raises(NoteError, match="PeterNeumann"):
        open_note(f"{TEXT}\n{misnamed}", VerifierKey.parse(PETER))


def test_a_bad_signature_by_a_known_key_is_never_outweighed_by_a_good_one() -> None:
    bad = PETER_SIGNED.replace("/ZJk", "/ZJl")
    longer = PETER_SIGNED.replace("/ZJk", "/ZJkABCD")
    for signed in (bad, longer, PETER_SIGNED + bad, bad + PETER_SIGNED):
        with pytest.raises(NoteError, match=r"bad signature: PeterNeumann\+c74f20a3"):
            open_note(f"{TEXT}\n{signed}", VerifierKey.parse(PETER))
    assert open_note(f"{TEXT}\n{PETER_SIGNED}{PETER_SIGNED}", VerifierKey.parse(PETER)) == TEXT


def test_a_text_may_itself_look_like_a_signed_note() -> None:
    inner = f"{TEXT}\n{PETER_SIGNED}"
    assert open_note(KEY.sign(inner), KEY.verifier) == inner
    with pytest.raises(NoteError, match="PeterNeumann"):
        open_note(KEY.sign(inner), VerifierKey.parse(PETER))


# Checkpoints.


@given(checkpoints)
def test_a_checkpoint_is_read_back_as_it_was_signed(checkpoint: Checkpoint) -> None:
    assert open_checkpoint(KEY.sign(checkpoint.text()), KEY.verifier) == checkpoint
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_a_checkpoint_is_three_lines() -> None:
    assert CHECKPOINT.text() == "example.com/log\n5\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"


def test_the_checkpoint_of_an_empty_log() -> None:
    empty = Checkpoint("example.com/log", 0, EMPTY_ROOT)
    assert empty.text() == "example.com/log\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
    assert open_checkpoint(KEY.sign(empty.text()), KEY.verifier) == empty


def test_lines_that_others_added_and_witnesses_signatures_are_passed_over() -> None:
    note = KEY.sign(f"{CHECKPOINT.text()}an extension\nanother\n") + PETER_SIGNED + ENOCH_SIGNED
    assert open_checkpoint(note, KEY.verifier) == CHECKPOINT


ROOT = base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        "a\n",
        "a\n5\n",
        f"\n5\n{ROOT}\n",
        f"a\n\n{ROOT}\n",
        f"a\n5\n\n{ROOT}\n",
        f"a\n5\n{ROOT}\n\n",
        f"a\n5\n{ROOT}\nextension\n\nanother\n",
        f"a\n05\n{ROOT}\n",
        f"a\n00\n{ROOT}\n",
        f"a\n+5\n{ROOT}\n",
        f"a\n-5\n{ROOT}\n",
        f"a\n 5\n{ROOT}\n",
        f"a\n5 \n{ROOT}\n",
        f"a\n5_0\n{ROOT}\n",
        f"a\n0x5\n{ROOT}\n",
        f"a\n5.0\n{ROOT}\n",
        f"a\n٥\n{ROOT}\n",
        f"a\n{MAX_SIZE + 1}\n{ROOT}\n",
        f"a\n1{'0' * 5000}\n{ROOT}\n",
        f"a\n0\n{ROOT}\n",
        f"a\n5\n{ROOT[:-1]}\n",
        f"a\n5\n{ROOT} \n",
        f"a\n5\n{ROOT.replace('8=', '9=')}\n",
        f"a\n5\n{base64.b64encode(bytes(31)).decode()}\n",
        f"a\n5\n{base64.b64encode(bytes(33)).decode()}\n",
        f"a\n5\n{base64.urlsafe_b64encode(bytes([255] * 32)).decode()}\n",
        f"a\n5\n{bytes(32).hex()}\n",
        "a\n5\né\n",
    ],
)
def test_a_signed_text_that_is_no_checkpoint_is_malformed(text: str) -> None:
    with pytest.raises(NoteError, match="malformed checkpoint"):
        open_checkpoint(KEY.sign(text), KEY.verifier)


def test_an_unsigned_checkpoint_is_not_even_read() -> None:
    with pytest.raises(NoteError, match="no signature"):
        open_checkpoint(OTHER.sign("a\nnonsense\n"), KEY.verifier)


@pytest.mark.parametrize(
    ("origin", "size", "root", "why"),
    [
        ("", 1, bytes(32), "one line"),
        ("a\nb", 1, bytes(32), "one line"),
        ("a\tb", 1, bytes(32), "one line"),
        ("\ud800", 1, bytes(32), "one line"),
        ("a", -1, bytes(32), "-1"),
        ("a", MAX_SIZE + 1, bytes(32), "9223372036854775808"),
        ("a", 1, b"", "32 bytes, not 0"),
        ("a", 0, bytes(32), "empty"),
    ],
)
def test_a_checkpoint_that_could_not_be_read_is_never_made(origin: str, size: int, root: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Checkpoint(origin, size, root)


@given(st.binary(max_size=40), st.text("ABCab019+/-_= \n", max_size=12))
def test_bytes_have_one_base64(data: bytes, text: str) -> None:
    assert strict_base64(base64.b64encode(data).decode()) == data
    try:
        decoded = strict_base64(text)
    except ValueError:
        return
    assert base64.b64encode(decoded).decode() == text
