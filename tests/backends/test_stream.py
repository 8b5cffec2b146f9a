"""The attached stream: every byte, both ways, and its end."""

from __future__ import annotations

import hashlib
import threading
import time

from sandboxkit._bundle import bundle
from tests.support.waiting import allowed, wait_until

from .lab import Lab, Running


def test_the_agents_hello_is_the_first_thing_on_the_stream(lab: Lab) -> None:
    spec = lab.spec("--workspace", "/workspace", agent=bundle())
    container_id = lab.create(spec)
    stream = lab.backend.attach(container_id)
    try:
        lab.backend.start(container_id)
        frame = Running(container_id, stream).receive_exactly(16)
    finally:
        stream.close()
        lab.backend.remove(container_id)
    # agent/PROTOCOL.md, 1 and 3.1: type HELLO on channel 0, then the magic.
    assert frame[4:9] == b"\0\0\0\0\x01"
    assert frame[12:16] == b"SBXK"


def test_the_first_bytes_of_a_quick_command_are_there(lab: Lab) -> None:
    for _ in range(5):
        assert lab.run("echo first; echo second") == ("first\nsecond\n", "")


def test_every_byte_arrives_both_ways(lab: Lab) -> None:
    block = hashlib.sha512(b"noise").digest() * 1024 + bytes(range(256)) * 4
    count = 64
    with lab.running("/bin/cat") as running:

        def send() -> None:
            for _ in range(count):
                running.send(block)

        sender = threading.Thread(target=send)
        sender.start()
        received = running.receive_exactly(count * len(block))
        sender.join(30)
    assert received == block * count


def test_the_engines_detach_keys_are_bytes_like_others(lab: Lab) -> None:
    # ctrl-p ctrl-q, one by one, is what makes `attach` leave a terminal.
    with lab.running("/bin/cat") as running:
        for byte in (b"\x10", b"\x11", b"\x10", b"\x11", b"."):
            running.send(byte)
            assert running.receive_exactly(1) == byte


def test_standard_error_is_told_apart_and_kept(lab: Lab) -> None:
    assert lab.run("echo out; echo oh no >&2; echo more") == ("out\nmore\n", "oh no")


def test_the_end_of_the_stream_is_the_end_of_the_commands_input_and_of_the_container(lab: Lab) -> None:
    with lab.running("/bin/cat") as running:
        running.send(b"x")
        assert running.receive_exactly(1) == b"x"
        running.stream.shutdown()
        wait_until(lambda: not lab.left_over(), "the container is gone", 5)


def test_shutdown_ends_a_receive_in_another_thread(lab: Lab) -> None:
    with lab.running("/bin/cat") as running:
        ended = threading.Event()

        def receive() -> None:
            assert not running.stream.receive()
            ended.set()

        thread = threading.Thread(target=receive)
        thread.start()
        running.stream.shutdown()
        assert ended.wait(5)
        thread.join(5)


def test_a_container_that_floods_the_stream_is_removed_at_once(lab: Lab) -> None:
    with lab.running("/bin/cat", "/dev/zero") as running:
        running.receive_exactly(1 << 20)
        time.sleep(0.2)  # let every buffer on the way fill up
        begin = time.monotonic()
        running.stream.shutdown()
        lab.backend.remove(running.id)
        assert time.monotonic() - begin < allowed(2)
        assert lab.left_over() == []
