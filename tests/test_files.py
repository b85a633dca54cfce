"""Files that a user names are read up to a limit, and only where they may be."""

import os
from pathlib import Path

import pytest

from meruit.errors import DocumentError, MeruitError, OutsideFolder, UnreadableFile
from meruit.files import display_name, find_beside, read_bytes


def test_a_name_that_is_not_possible_is_refused() -> None:
    with pytest.raises(UnreadableFile):
        read_bytes("a\0b")


def test_a_file_past_the_limit_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.files.MAX_FILE_BYTES", 1024 * 1024)
    file = tmp_path / "large.json"
    with file.open("wb") as large:
        large.truncate(2**40)
    with pytest.raises(DocumentError, match="more than 1 MiB"):
        read_bytes(file)
    file.write_bytes(b" " * (1024 * 1024 - 2) + b"{}")
    assert read_bytes(file).endswith(b"{}")


def test_a_file_is_found_in_the_folder_or_below_it(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a").write_text("a")
    (tmp_path / "link").symlink_to("deeper/a")
    for name in ("deeper/a", "./deeper/../deeper/a", "link", str(tmp_path / "deeper" / "a")):
        assert find_beside(tmp_path, name).read_text() == "a"


def test_a_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "secret").write_text("secret")
    (home / "link").symlink_to(tmp_path / "secret")
    (home / "way_out").symlink_to(tmp_path)
    for name in ("../secret", str(tmp_path / "secret"), "link", "way_out/secret", "/dev/zero"):
        with pytest.raises(OutsideFolder) as refused:
            find_beside(home, name)
        assert refused.value.code == "outside_folder"


@pytest.mark.parametrize("name", ["gone", "loop", "a\0b", "x" * 5_000, ".", "pipe"])
def test_what_is_not_a_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MeruitError) as refused:
        find_beside(tmp_path, name)
    assert repr(name) in str(refused.value)


def test_standard_input_has_a_name_in_messages() -> None:
    assert [display_name(one) for one in ("-", "", Path("a"))] == ["standard input", "''", "a"]
