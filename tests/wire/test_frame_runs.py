"""Runs of frames: one expression, match after match, never across something that is not a frame."""

from __future__ import annotations

import re

from slipstream.wire.frame_runs import FrameRun, matches_in_row, run_pattern, scan_run

PLAIN = rb"MSG (\S+) 1 3\r\n(.{3})\r\n"
FRAME = run_pattern(PLAIN)


def test_frames_in_a_row_become_columns() -> None:
    data = b"PING\r\nMSG a 1 3\r\nabc\r\nMSG b 1 3\r\ndef\r\nPING\r\n"
    run = scan_run(FRAME, data, 6)
    assert run == FrameRun([[b"a", b"b"], [b"abc", b"def"]], 2, 38)
    assert data[run.end :] == b"PING\r\n"


def test_a_run_ends_before_the_first_frame_of_another_form() -> None:
    data = b"MSG a 1 3\r\nabc\r\nMSG b 1 4\r\ndefg\r\nMSG c 1 3\r\nhij\r\n"
    run = scan_run(FRAME, data, 0)
    assert run is not None
    assert (run.length, run.end) == (1, 16)
    assert scan_run(FRAME, data, run.end) is None


def test_a_frame_that_is_cut_is_left_alone() -> None:
    assert scan_run(FRAME, b"MSG a 1 3\r\nab", 0) is None
    single = re.compile(PLAIN, re.DOTALL)
    assert [match[1] for match in matches_in_row(single, b"MSG a 1 3\r\nabc\r\nMSG b 1 3\r\n", 0)] == [b"a"]


def test_a_run_takes_nothing_behind_what_is_no_frame() -> None:
    frame = b"MSG a 1 3\r\nabc\r\n"
    for between in (b"PING\r\n", b"\r\n", b"x", b"MSG b 1 4\r\n" + frame[:4] + b"\r\n"):
        data = frame * 2 + between + frame
        run = scan_run(FRAME, data, 0)
        assert run is not None
        assert (run.length, data[run.end :]) == (2, between + frame)
    assert scan_run(FRAME, frame, 0) == FrameRun([[b"a"], [b"abc"]], 1, len(frame))
    assert scan_run(FRAME, frame, len(frame)) is None
