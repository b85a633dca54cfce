"""`meruit audit`: a bundle comes out of the records, and a stranger checks it."""

import base64
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of
from tests.faults.tampering import Forgery

from meruit.audit.bundle import pack_files, read, unpack
from meruit.errors import AuditStep
from meruit.log.merkle import is_included, leaf_hash
from meruit.log.note import SigningKey, VerifierKey, open_checkpoint

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

CRITERIA = {
    "criteria": [{"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5}],
}


@pytest.fixture
def outcome(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> str:
    """An outcome in ./meruit-data."""
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)
    write("criteria.json", CRITERIA)
    write("out.json", {"text": "the cat sat down"})
    write("in.json", {"reference": "the cat sat"})
    done = run("verify", "criteria.json", "--output", "out.json", "--input", "in.json", "--record")
    assert done.returncode == 0, done.stderr
    return next(word for word in done.stderr.split() if word.startswith("out_"))


@pytest.fixture
def bundle(run: Run, outcome: str) -> str:
    done = run("audit", "export", outcome, "-o", "bundle.zip")
    assert done.returncode == 0, done.stderr
    return "bundle.zip"


def signer() -> SigningKey:
    """The deployment's own key, as only its operator has it."""
    name = read(unpack(Path("bundle.zip").read_bytes())).key.split("+")[0]
    return SigningKey.from_pem(name, Path("meruit-data/audit-key.pem").read_bytes())


def test_a_bundle_passes_step_by_step(run: Run, bundle: str) -> None:
    done = run("audit", "verify", bundle)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(step) for step in AuditStep]
    assert [line.split()[1] for line in lines] == ["ok", "ok", "skipped", *["ok"] * 8, "skipped"]
    # The key is the bundle's own, which proves little; a note says so.
    assert done.stderr.startswith("note: ")


def test_json_tells_the_same(run: Run, bundle: str, outcome: str) -> None:
    done = run("audit", "verify", bundle, "--json")
    found = json.loads(done.stdout)
    assert (found["outcome"], found["failed"]) == (outcome, None)
    assert [step["step"] for step in found["steps"]] == [str(step) for step in AuditStep]


def test_the_first_step_that_fails_is_named(run: Run, bundle: str, write: Write) -> None:
    files = unpack(Path(bundle).read_bytes())
    files["work/output.json"] = b'{"text":"the cat sat"}'
    write("forged.zip", pack_files(files))
    done = run("audit", "verify", "forged.zip")
    assert done.returncode == 15
    assert re.search(r" blobs: work/output\.json ", done.stderr)
    states = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]
    assert states[6].startswith("failed ")
    assert states[7:] == ["not reached"] * 5
    done = run("audit", "verify", "forged.zip", "--json")
    assert done.returncode == 15
    assert json.loads(done.stdout)["failed"] == "blobs"


def test_every_step_has_an_exit_code_of_its_own(run: Run, bundle: str, write: Write) -> None:
    data = Path(bundle).read_bytes()
    files, whole, key = unpack(data), read(unpack(data)), signer()
    honest = Forgery.of(whole)
    lie = honest.results[1].replace(b'"success":true', b'"success":false')
    cases = {
        10: b"no zip",
        11: pack_files({**files, "key.txt": b"no key\n"}),
        12: pack_files({**files, "entries.json": files["entries.json"].replace(b'"index":1', b'"index":2', 1)}),
        13: pack_files({**files, "consistency.json": b'{"proof":["' + b"A" * 43 + b'="]}'}),
        14: pack_files({**files, "manifest.json": files["manifest.json"].replace(b"[1]", b"[1,2]")}),
        15: pack_files({**files, "work/input.json": b"{}"}),
        16: honest._replace(work={**honest.work, "output": b'{"text":"other"}'}).committed().packed(key, whole),
        17: honest._replace(results={1: lie}).committed().packed(key, whole),
    }
    for code, forged in cases.items():
        done = run("audit", "verify", write("forged.zip", forged))
        assert done.returncode == code, (code, done.stdout, done.stderr)
        (step,) = (one for one in AuditStep if one.exit_code == code)
        assert f" {step}: " in done.stderr


def test_a_key_is_pinned_as_text_or_as_a_file(run: Run, bundle: str, write: Write) -> None:
    key = run("audit", "key").stdout.strip()
    assert VerifierKey.parse(key).vkey == key
    write("key.txt", f"{key}\n")
    own = run("audit", "verify", bundle).stderr
    for given in (key, "key.txt"):
        done = run("audit", "verify", bundle, "--key", given)
        assert (done.returncode, done.stderr == own) == (0, False)
    other = SigningKey.generate(key.split("+")[0], b"x" * 32).vkey
    assert run("audit", "verify", bundle, "--key", other).returncode == 11


def test_a_key_that_is_none_is_bad_usage(run: Run, bundle: str, write: Write) -> None:
    write("empty.txt", "")
    codes = {"nofile": "unreadable_file", "name+00000000+AAAA": "bad_note", "empty.txt": "bad_note"}
    assert {given: error_of(run, "audit", "verify", bundle, "--key", given)["code"] for given in codes} == codes


def test_an_earlier_checkpoint_is_compared(run: Run, bundle: str, write: Write) -> None:
    earlier = run("audit", "checkpoint").stdout
    write("earlier.txt", earlier)
    usual = json.loads(run("audit", "verify", bundle, "--json").stdout)["notes"]
    done = run("audit", "verify", bundle, "--checkpoint", "earlier.txt", "--json")
    (more,) = [note for note in json.loads(done.stdout)["notes"] if note not in usual]
    assert (done.returncode, "4 entries" in more) == (0, True)
    write("earlier.txt", earlier.replace("\n4\n", "\n3\n"))
    assert run("audit", "verify", bundle, "--checkpoint", "earlier.txt").returncode == 11


def test_files_that_cannot_be_read_are_bad_input(run: Run, bundle: str) -> None:
    for arguments, name in (
        (("nofile.zip",), "nofile.zip"),
        ((".",), "."),
        ((bundle, "--checkpoint", "nofile"), "nofile"),
    ):
        error = error_of(run, "audit", "verify", *arguments)
        assert (error["code"], error["where"]) == ("unreadable_file", name)
    assert error_of(run, "audit", "verify", "-", "--checkpoint", "-")["code"] == "usage"


def test_a_bundle_may_come_from_standard_input(run: Run, bundle: str) -> None:
    assert run("audit", "verify", "-", stdin=Path(bundle).read_bytes()).returncode == 0


def test_a_bundle_may_go_to_standard_output(outcome: str, meruit_at_hand: Path) -> None:
    command = [str(meruit_at_hand / "meruit"), "audit", "export", outcome, "-o", "-"]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    assert read(unpack(done.stdout)).manifest.outcome == outcome


def test_a_receipt_proves_inclusion(run: Run, outcome: str) -> None:
    found = json.loads(run("audit", "receipt", outcome, "--version", "1").stdout)
    signed = open_checkpoint(found["checkpoint"], VerifierKey.parse(found["vkey"]))
    proof = [base64.b64decode(one) for one in found["proof"]]
    leaf = leaf_hash(base64.b64decode(found["entry"]))
    assert is_included(leaf, found["index"], signed.size, proof, signed.root)
    assert error_of(run, "audit", "receipt", outcome, "--version", "2")["code"] == "not_found"
    assert json.loads(run("audit", "receipt", outcome).stdout) == found


def test_json_is_for_every_command(run: Run, outcome: str) -> None:
    def told(*arguments: str) -> Any:
        done = run("audit", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        return json.loads(done.stdout)

    assert told("key") == {"vkey": run("audit", "key").stdout.strip()}
    assert told("checkpoint") == {"checkpoint": run("audit", "checkpoint").stdout, "size": 4}
    assert told("receipt", outcome) == json.loads(run("audit", "receipt", outcome).stdout)
    found = told("export", outcome, "-o", "bundle.zip")
    assert found == {"outcome": outcome, "file": "bundle.zip", "bytes": Path("bundle.zip").stat().st_size}


def test_standard_output_holds_the_bundle_or_json(run: Run, outcome: str) -> None:
    error = error_of(run, "audit", "export", outcome, "-o", "-")
    assert (error["code"], "--json" in error["message"]) == ("usage", True)


def test_what_is_not_there_is_said(run: Run, outcome: str, tmp_path: Path) -> None:
    unknown = error_of(run, "audit", "export", "out_none", "-o", "none.zip")
    assert (unknown["code"], "'out_none'" in unknown["message"]) == ("not_found", True)
    assert error_of(run, "audit", "export", outcome, "-o", "none.zip", "--tenant", "other")["code"] == "not_found"
    assert not Path("none.zip").exists()
    assert error_of(run, "audit", "key", "--data", str(tmp_path / "elsewhere"))["code"] == "store_error"


def test_an_erased_outcome_still_passes(run: Run, outcome: str) -> None:
    assert run("outcome", "erase", outcome, "--reason", "asked for", "--yes").returncode == 0
    assert run("audit", "export", outcome, "-o", "erased.zip").returncode == 0
    done = run("audit", "verify", "erased.zip", "--json")
    assert done.returncode == 0, done.stderr
    states = {step["step"]: step["state"] for step in json.loads(done.stdout)["steps"]}
    assert {name: states[name] for name in ("signature", "inclusion", "sequence")} == dict.fromkeys(
        ("signature", "inclusion", "sequence"), "ok"
    )
    assert (states["metrics"], states["judge"]) == ("skipped", "skipped")


def test_own_code_runs_with_the_flag_only(run: Run, write: Write) -> None:
    expression = {"expr": "double(size(output.text))", "metric_type": "numeric", "comparison": "gte", "threshold": 3}
    write("criteria.json", {"criteria": [expression]})
    write("out.json", {"text": "the cat sat down"})
    done = run("verify", "criteria.json", "--output", "out.json", "--record")
    outcome = next(word for word in done.stderr.split() if word.startswith("out_"))
    assert run("audit", "export", outcome, "-o", "own.zip").returncode == 0
    without, with_flag = run("audit", "verify", "own.zip"), run("audit", "verify", "own.zip", "--run-code")
    assert (without.returncode, with_flag.returncode) == (0, 0)
    assert "not rerun" in without.stderr
    assert "not rerun" not in with_flag.stderr


def test_a_strangers_text_moves_no_cursor(run: Run, bundle: str, write: Write) -> None:
    files = unpack(Path(bundle).read_bytes())
    files["manifest.json"] = files["manifest.json"].replace(b"meruit-bundle/1", b"\\u001b[2Jmeruit")
    done = run("audit", "verify", write("forged.zip", pack_files(files)))
    assert done.returncode == 10
    assert "\x1b" not in done.stdout + done.stderr
