"""The pool of SDK clients: one thread at a time, never across a fork, nothing kept that may be in a bad state."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from sandboxkit.engines.clients import ClientPool
from sandboxkit.errors import EngineUnavailableError


class Client:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def pool() -> Iterator[ClientPool[Client]]:
    pool = ClientPool(Client, idle=2)
    yield pool
    pool.close()


def test_a_client_is_used_again(pool: ClientPool[Client]) -> None:
    with pool.borrow() as first:
        pass
    with pool.borrow() as second:
        assert second is first


def test_two_at_once_are_two(pool: ClientPool[Client]) -> None:
    with pool.borrow() as first, pool.borrow() as second:
        assert first is not second


def test_threads_never_share_one(pool: ClientPool[Client]) -> None:
    in_use: set[Client] = set()
    shared: list[Client] = []

    def work() -> None:
        for _ in range(200):
            with pool.borrow() as client:
                if client in in_use:
                    shared.append(client)
                in_use.add(client)
                in_use.discard(client)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared == []


def test_no_more_than_a_few_are_kept(pool: ClientPool[Client]) -> None:
    with pool.borrow() as a, pool.borrow() as b, pool.borrow() as c:
        pass
    assert [client.is_closed for client in (a, b, c)].count(True) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_one_is_closed_after_an_exception(pool: ClientPool[Client], error: type[BaseException]) -> None:
    with pytest.raises(error), pool.borrow() as first:
        raise error
    assert first.is_closed
    with pool.borrow() as second:
        assert second is not first


def test_close_closes_those_that_come_back_later_too(pool: ClientPool[Client]) -> None:
    with pool.borrow() as first:
        pass
    with pool.borrow() as lent:
        assert lent is first
        pool.close()
        assert not lent.is_closed
    assert lent.is_closed
    with pytest.raises(EngineUnavailableError) as caught, pool.borrow():
        pass
    assert not caught.value.retryable
    pool.close()


def test_a_forked_child_makes_its_own(pool: ClientPool[Client]) -> None:
    with pool.borrow() as parents:
        pass
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with pool.borrow() as childs:
                code = 0 if childs is not parents and childs.pid == os.getpid() and parents.is_closed else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pool.borrow() as again:
        assert again is parents
        assert not again.is_closed
