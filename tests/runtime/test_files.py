"""A file is written whole or not at all, and what is not worth a run does not end one."""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
import time

import graf.runtime.files
from graf.errors import GrafError
from graf.runtime.files import (
    append_line,
    check_writable,
    claim_folder,
    file_sha256,
    is_taken,
    json_rows,
    kept_json,
    make_writable_folder,
    optional_file,
    read_object,
    readable_object,
    remove_leftovers,
    set_aside,
    whole_file,
    write_text,
)

import psutil
import pytest
from full_disk import small_files


def test_the_file_appears_with_its_content_and_alone(tmp_path):
    path = tmp_path / "new" / "folder" / "notes.txt"
    with whole_file(path) as temporary:
        temporary.write_text("all of it")
        assert not path.exists()
    assert path.read_text() == "all of it"
    assert list(path.parent.iterdir()) == [path]


def test_a_text_with_a_name_that_is_not_utf_8_is_written_with_escapes(tmp_path):
    write_text(tmp_path / "notes.txt", "caf\udce9.png, caf\u00e9.png\n")
    assert (tmp_path / "notes.txt").read_bytes() == b"caf\\udce9.png, caf\xc3\xa9.png\n"


def test_an_exception_keeps_the_old_content_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path):
    path = tmp_path / "notes.txt"
    with pytest.raises(PermissionError) as caught, whole_file(path) as temporary:
        raise PermissionError(errno.EACCES, "Permission denied", str(temporary))
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught, whole_file(path):
        (tmp_path / "another").read_text()
    assert caught.value.filename == str(tmp_path / "another")


def test_an_interruption_is_an_exception_too(tmp_path):
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "notes.txt") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("readings", [3, 4])
def test_a_file_that_another_process_reads_is_replaced_once_it_has_been_read(tmp_path, monkeypatch, readings):
    """As on Windows."""
    path, replace, waited = tmp_path / "status.json", os.replace, []
    path.write_text("old")

    def replace_unread(source, target):
        if len(waited) < readings:
            raise PermissionError(errno.EACCES, "used by another process", str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(graf.runtime.files, "REPLACE_TRIES", 4)
    monkeypatch.setattr(os, "replace", replace_unread)
    monkeypatch.setattr(time, "sleep", waited.append)
    with contextlib.nullcontext() if readings == 3 else pytest.raises(PermissionError, match=r"status\.json"):
        write_text(path, "new")
    assert waited == [0.05] * 3
    assert path.read_text() == ("new" if readings == 3 else "old")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".DS_Store", "desktop.ini", "Thumbs.db"])
def test_a_folder_that_was_only_looked_at_is_free(tmp_path, name):
    """By a file manager."""
    assert not is_taken(tmp_path)
    (tmp_path / name).touch()
    claim_folder(tmp_path, {"size": 64})
    (tmp_path / "settings.json").unlink()
    (tmp_path / "mine.txt").touch()
    with pytest.raises(GrafError, match="was not made by this tool; nothing was written"):
        claim_folder(tmp_path, {"size": 64})


def test_the_temporary_name_keeps_the_suffix_and_the_folder(tmp_path):
    with whole_file(str(tmp_path / "clip.mp4")) as temporary:
        assert temporary.suffix == ".mp4"
        assert temporary.parent == tmp_path
        assert temporary.name != "clip.mp4"
        temporary.write_bytes(b"")


def test_a_block_that_writes_nothing_is_an_error_and_keeps_the_old_content(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), whole_file(path):
        pass
    assert path.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="folders that can be synced")
def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    told = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (told.append(stat.S_ISDIR(os.fstat(fd).st_mode)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (told.append("rename"), replace(a, b)))
    with whole_file(tmp_path / "notes.txt") as temporary:
        temporary.write_text("all")
    assert told == [False, "rename", True]  # the file, its name, the folder


@pytest.mark.skipif(os.name != "posix", reason="descriptors are counted")
def test_writing_leaves_no_descriptor_open(tmp_path):
    """A run writes its status every few seconds for days, and may have a thousand."""
    before = psutil.Process().num_fds()
    for _ in range(20):
        write_text(tmp_path / "status.json", "{}")
    assert psutil.Process().num_fds() < before + 20  # other threads may have opened one


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not supported")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with whole_file(tmp_path / "notes.txt") as temporary:
        temporary.write_text("all")
    assert (tmp_path / "notes.txt").read_text() == "all"


def test_a_file_is_set_aside_under_the_first_free_number(tmp_path):
    path = tmp_path / "notes.txt"
    for content in ("old", "newer"):
        path.write_text(content)
        set_aside(path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"notes_1.txt": "old", "notes_2.txt": "newer"}


def test_a_line_is_appended_whole_or_not_at_all(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_line(path, "first")
    with small_files(len("first\nsec")), pytest.raises(OSError, match="File too large"):
        append_line(path, "second")
    assert path.read_text() == "first\n"
    append_line(path, "third")
    assert path.read_text() == "first\nthird\n"


def test_a_folder_removed_meanwhile_is_an_os_error_and_made_again_by_the_next_try(tmp_path):
    path = tmp_path / "run" / "notes.txt"
    with pytest.raises(FileNotFoundError), whole_file(path) as temporary:
        temporary.write_text("all")
        shutil.rmtree(path.parent)
    with whole_file(path) as temporary:
        temporary.write_text("all")
    assert path.read_text() == "all"


def test_what_another_machine_may_be_writing_is_left_for_an_hour(tmp_path, monkeypatch):
    monkeypatch.setattr(graf.runtime.files.psutil, "pid_exists", lambda pid: pid == 7)
    for name in (
        ".clip.5.partial.mp4",
        ".clip.6.partial.mp4",
        ".clip.7.partial.mp4",
        ".model.5.partial.pt",
        ".model.7.partial.pt",
    ):
        (tmp_path / name).write_bytes(b"half")
    for pid, age_s in ((5, 3000), (6, 4000), (7, 4000)):
        os.utime(tmp_path / f".clip.{pid}.partial.mp4", (time.time() - age_s,) * 2)
    remove_leftovers(tmp_path, own=(".model*.pt",))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".clip.5.partial.mp4", ".clip.7.partial.mp4", ".model.7.partial.pt"]


def test_sha256_is_that_of_the_bytes(tmp_path):
    content = b"0123456789" * 200_000  # more than a block
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_lost_file_is_told_once_a_kind(monkeypatch, caplog):
    monkeypatch.setattr(graf.runtime.files, "_lost", set())
    with caplog.at_level(logging.WARNING, "graf"):
        for kind in ("videos", "videos", "sample sheets"):
            with optional_file(kind):
                raise OSError(errno.ENOSPC, "No space left on device")
    assert [record.getMessage().split(" cannot")[0] for record in caplog.records] == ["videos", "sample sheets"]
    assert "No space left on device" in caplog.text


def test_other_errors_end_a_run():
    with pytest.raises(ZeroDivisionError), optional_file("videos"):
        raise ZeroDivisionError


def test_a_folder_that_will_be_written_can_be_asked_for_before(tmp_path):
    make_writable_folder(tmp_path / "new" / "results")
    assert list((tmp_path / "new" / "results").iterdir()) == []
    (tmp_path / "rows.json").write_text("[1]")
    with pytest.raises(OSError):
        make_writable_folder(tmp_path / "rows.json")
    assert (tmp_path / "rows.json").read_text() == "[1]"


def test_a_file_that_will_be_written_can_be_asked_for_before(tmp_path):
    check_writable(tmp_path / "new" / "rows.json")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "rows.json").write_text("[1]")
    check_writable(str(tmp_path / "rows.json"))
    assert (tmp_path / "rows.json").read_text() == "[1]"
    with pytest.raises(OSError):
        check_writable(tmp_path / "new")


def test_lines_that_hold_no_row_are_left_out():
    cut = ["", '{"step": 3', "[3]", b"\xff\xfe", "[" * 100_000, '{"step": ' + "9" * 5000 + "}"]
    whole = ['{"step": 3, "loss_g": null}\n', b'{"step": 4}']
    assert list(json_rows([whole[0], *cut, whole[1]])) == [{"step": 3, "loss_g": None}, {"step": 4}]


def test_json_is_computed_once_and_again_where_its_file_is_damaged(tmp_path):
    path, values = tmp_path / "new" / "kept.json", iter(([1.5, None], "again"))
    assert kept_json(path, lambda: next(values)) == kept_json(path, lambda: next(values)) == [1.5, None]
    path.write_text("[1.5")
    assert kept_json(path, lambda: next(values)) == "again"


def test_json_that_cannot_be_kept_is_computed_all_the_same(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(graf.runtime.files, "_lost", set())
    (tmp_path / "file").touch()
    assert kept_json(tmp_path / "file" / "kept.json", lambda: [3]) == [3]
    assert "what is kept for the next time cannot be written" in caplog.text


@pytest.mark.parametrize("content", [None, "{", "[3]", "[" * 100_000])
def test_what_is_no_object_reads_as_an_empty_one(tmp_path, content):
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    assert read_object(tmp_path / "a.json") == readable_object(tmp_path / "a.json") == {}


def test_a_file_that_cannot_be_read_is_no_empty_one_unless_nothing_is_lost(tmp_path):
    with pytest.raises(OSError):  # a folder; callers who would overwrite what they take for damaged must not
        read_object(tmp_path)
    assert readable_object(tmp_path) == {}
