import os

import pytest

from brim.probing.server_log import ServerLog


@pytest.fixture
def log():
    log = ServerLog()
    yield log
    log.close()


def test_the_tail_is_of_the_last_request_alone(log):
    os.write(log.fileno(), b"first\n")
    assert log.tail() == "first\n"
    log.mark()
    assert log.tail() == ""
    os.write(log.fileno(), b"second\n")
    assert log.tail() == "second\n"


def test_a_long_tail_begins_with_a_whole_line(log):
    os.write(log.fileno(), b"".join(b"line %03d\n" % number for number in range(999)))
    lines = log.tail().splitlines()
    assert lines[-1] == "line 998"
    assert lines[0] == f"line {999 - len(lines):03d}"
    assert len(lines) > 400


def test_a_line_that_never_ends_is_shown_by_its_end(log):
    os.write(log.fileno(), b"x" * 9999 + b"\n")
    assert log.tail().startswith("xxx")


def test_a_new_server_has_an_empty_log(log):
    os.write(log.fileno(), b"a longer line\n")
    log.mark()
    log.clear()
    os.write(log.fileno(), b"new\n")
    assert log.tail() == "new\n"
