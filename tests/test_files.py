"""A file is written whole or not at all."""

import pytest

from graf.files import whole_file


def test_the_file_appears_with_its_content_and_alone(tmp_path):
    path = tmp_path / "new" / "folder" / "notes.txt"
    with whole_file(path) as temporary:
        temporary.write_text("all of it")
        assert not path.exists()
    assert path.read_text() == "all of it"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_keeps_the_old_content_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interruption_is_an_exception_too(tmp_path):
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "notes.txt") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


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
