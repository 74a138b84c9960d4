"""What a terminal, and a file, show of the output of several processes."""

import io
import os
import time

from keras_parallax.cluster.output import Relay, Screen


class Terminal(io.BytesIO):
    def isatty(self):
        return True


def _relay(data, stream, **options):
    read, write = os.pipe()
    relay = Relay(os.fdopen(read, "rb"), Screen(stream), **options)
    os.write(write, data)
    os.close(write)
    relay.join(5.0)
    return stream.getvalue()


def test_lines_are_prefixed_and_the_last_may_be_cut_short():
    assert _relay(b"a\nb", io.BytesIO(), prefix="[0] ") == b"[0] a\n[0] b\n"


def test_without_a_prefix_bytes_pass_as_they_are():
    log = io.BytesIO()
    data = b"a\r\x08b\n\xff"
    assert _relay(data, io.BytesIO(), log=log) == data
    assert log.getvalue() == data


def test_a_progress_bar_is_one_line_in_a_file():
    bar = b"1/3\x08\x08\x08\r2/3\x08\x08\x08\r3/3 done\nnext\n"
    assert _relay(bar, io.BytesIO(), prefix="[0] ") == b"[0] 3/3 done\n[0] next\n"


def test_a_progress_bar_is_redrawn_on_a_terminal():
    screen = Screen(stream := Terminal())
    screen.redraw(b"[0] ", b"1/3")
    screen.redraw(b"[0] ", b"2/3")
    screen.line(b"[1] ", b"hello")
    assert stream.getvalue() == (b"\r[0] 1/3\x1b[K\r[0] 2/3\x1b[K\r\x1b[K[1] hello\n")


def test_a_quiet_relay_shows_its_last_lines_on_demand():
    read, write = os.pipe()
    relay = Relay(os.fdopen(read, "rb"), None, "[s] ")
    os.write(write, b"a\nb\n")
    os.close(write)
    relay.join(5.0)
    relay.show_tail(Screen(stream := io.BytesIO()))
    assert stream.getvalue() == b"[s] a\n[s] b\n"


def test_what_was_written_before_is_shown_when_it_has_caught_up():
    class Slow(io.BytesIO):
        def write(self, data):
            time.sleep(0.1)
            return super().write(data)

    read, write = os.pipe()
    relay = Relay(os.fdopen(read, "rb"), Screen(stream := Slow()), prefix="[0] ")
    os.write(write, b"a\nb\n")
    relay.catch_up(5.0)
    assert stream.getvalue() == b"[0] a\n[0] b\n"
    os.close(write)
    relay.join(5.0)
    relay.catch_up(5.0)


def test_a_reader_that_has_gone_is_no_error():
    screen = Screen(stream := io.BytesIO())
    stream.close()
    screen.line(b"", b"a")


def test_an_empty_prefix_is_a_line_at_a_time_all_the_same():
    bar = b"1/2\x08\x08\x08\r2/2 done\nresult: {}\n"
    assert _relay(bar, io.BytesIO(), prefix="") == b"2/2 done\nresult: {}\n"


def test_two_streams_of_one_terminal_wipe_out_each_others_bars():
    out = Screen(Terminal())
    err = Screen(stream := Terminal(), beside=out)
    out.redraw(b"", b"1/3")
    err.line(b"[1] ", b"hello")
    assert stream.getvalue() == b"\r\x1b[K[1] hello\n"
