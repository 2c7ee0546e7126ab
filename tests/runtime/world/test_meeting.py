"""Rank 0's greeter: strangers, a rank that comes twice, an answer that was lost."""

import socket
import threading
import time

from allranks.runtime.world import port_rendezvous as meeting


def greeter(size):
    """A greeter in a thread; the port it listens at, and what it saw."""
    door = meeting.listen(0)
    came = set()

    def serve():
        came.update(meeting._greet(door, "token", size, 4242, time.monotonic() + 20))
        door.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return door.getsockname()[1], came, thread


def test_each_rank_is_let_in_once():
    port, came, thread = greeter(3)

    def ask(text):
        return meeting._ask("127.0.0.1", port, text.encode())

    assert ask("other 1\n") == "no"
    assert ask("GET / HTTP/1.0\n") == "no"
    assert ask("token 7\n") == "taken"
    assert ask("token 0\n") == "taken"
    with socket.create_connection(("127.0.0.1", port)) as lost:
        lost.sendall(b"token 1\n")  # goes away without taking the answer
    assert ask("token 1\n") == "4242"
    assert ask("token 1\n") == "taken"
    assert ask("token 2\n") == "4242"
    thread.join(timeout=20)
    assert came == {1, 2}
    assert ask("token 2\n") == "Connection refused"


def test_a_comer_that_says_nothing_holds_nobody_up_for_long(monkeypatch):
    monkeypatch.setattr(meeting, "_ANSWER_SECONDS", 0.2)
    port, came, thread = greeter(2)
    with socket.create_connection(("127.0.0.1", port)):
        time.sleep(0.1)
        answers = [meeting._ask("127.0.0.1", port, b"token 1\n") for _ in range(5)]
    assert "4242" in answers
    thread.join(timeout=20)
    assert came == {1}


def test_other_programs_are_told_from_greeters(monkeypatch):
    monkeypatch.setattr(meeting, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert meeting._ask("127.0.0.1", port, b"token 1\n") == "no answer"
    with socket.create_server(("127.0.0.1", 0)) as chatty:
        port = chatty.getsockname()[1]

        def talk():
            peer, _ = chatty.accept()
            peer.sendall(b"SSH-2.0-OpenSSH_9.2\n")
            peer.recv(100)
            peer.close()

        thread = threading.Thread(target=talk)
        thread.start()
        assert meeting._ask("127.0.0.1", port, b"token 1\n") == "another program"
        thread.join(timeout=20)
