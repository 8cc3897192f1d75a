"""Loads and stores: the threads that copy, against a cache and pages that do what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.worker_process import until
from tiered.client.port import Chain, Fill, Saved, Voucher
from tiered.connectors.vllm.loading import Loader
from tiered.connectors.vllm.orders import LoadOrder, PinnedBlocks, Shard, StoreOrder, StoreReport, pack_tokens
from tiered.connectors.vllm.saving import JOBS_MAX, Saver
from tiered.connectors.vllm.tally import Tally
from tiered.hashing.chain import Extras, chain_hashes
from tiered.types import NO_HINTS, BlockId, Hints, TenantId

SHARD = Shard(0, 0)
TENANT = TenantId("acme")
ROOT = b"r" * 32
BLOCK = 4
HINTS = Hints(session="chat")


class FakePages:
    """Notes what is copied; ``gate`` closed holds a copy up in its middle."""

    def __init__(self) -> None:
        self.batch = 1
        self.block_bytes = 10
        self.ins: list[tuple[int, int]] = []
        self.outs: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Event()
        self.broken_at: int | None = None

    def copy_in(self, pool: Any, slots: Sequence[BlockId], targets: Sequence[int]) -> None:
        if self.broken_at in targets:
            raise RuntimeError("no such block")
        self.ins.extend(zip(slots, targets, strict=True))

    def copy_out(self, sources: Sequence[int], pool: Any, slots: Sequence[BlockId]) -> None:
        self.inside.set()
        assert self.gate.wait(10)
        self.outs.extend(zip(sources, slots, strict=True))


class FakeClient:
    """A cache that stores nothing before ``n_resident`` and all after it up to ``n_room``, ``window`` at a time."""

    def __init__(self) -> None:
        self.pool = SimpleNamespace(name=b"pool", n_blocks=100, device="cpu")
        self.attached = True
        self.holds = True
        self.saves: list[tuple[Chain, str]] = []
        self.prefills: list[tuple[int, float]] = []
        self.vouched: list[Voucher] = []
        self.hints: list[Hints] = []
        self.n_resident, self.n_room, self.window = 0, 100, 100
        self.is_closed = False
        self.waits = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def vouch(self, voucher: Voucher) -> bool:
        self.vouched.append(voucher)
        return self.holds

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain:
        return Chain.of(ROOT, tokens, tenant=tenant, block_tokens=BLOCK, extras=extras)

    def save_chain(self, chain: Chain, *, fill: Fill, hints: Hints = NO_HINTS) -> Saved:
        self.waits.set()
        self.hints.append(hints)
        assert self.goes_on.wait(10)
        room = min(len(chain.hashes), self.n_room)
        try:
            for first in range(self.n_resident, room, self.window):
                slots = [BlockId(i) for i in range(first, min(first + self.window, room))]
                fill(self.pool, slots, first)  # type: ignore[arg-type]
        except BaseException as error:
            self.saves.append((chain, type(error).__name__))
            raise
        self.saves.append((chain, "stored"))
        return Saved(n_stored=max(0, room - self.n_resident), first_index=self.n_resident)

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        self.prefills.append((n_tokens, took_s))

    def close(self) -> None:
        self.is_closed = True


def all_good(pool: Any, block_ids: Sequence[BlockId], checksums: Sequence[bytes | None]) -> int:
    return len(block_ids)


def load_order(name: str, n_blocks: int, *, pool: bytes = b"pool", shard: Shard = SHARD) -> LoadOrder:
    slots = tuple(BlockId(i) for i in range(n_blocks))
    pinned = PinnedBlocks(Voucher(pool, 1, 7), slots, (b"x" * 16,) * n_blocks)
    return LoadOrder(name, tuple(range(50, 50 + n_blocks)), {shard: pinned})


@contextmanager
def loader(client: FakeClient, pages: FakePages, check: Callable[..., int] = all_good) -> Iterator[Loader]:
    made = Loader(client, pages, SHARD, check=check, tally=Tally())  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


def ended(made: Loader, n: int) -> tuple[set[str], set[int]]:
    names: set[str] = set()
    bad: set[int] = set()

    def all_there() -> bool:
        arrivals = made.take()
        assert not names & arrivals.request_ids, "named twice"
        names.update(arrivals.request_ids)
        bad.update(arrivals.bad_blocks)
        return len(names) == n

    until(all_there, f"{n} loads end")
    return names, bad


def test_a_load_copies_each_block_and_asks_for_the_pins_afterwards() -> None:
    client, pages = FakeClient(), FakePages()
    with loader(client, pages) as made:
        made.submit([load_order("r", 3)])
        assert ended(made, 1) == ({"r"}, set())
    assert pages.ins == [(0, 50), (1, 51), (2, 52)]
    assert client.vouched == [Voucher(b"pool", 1, 7)]
    assert client.is_closed


def test_from_the_first_bad_block_on_all_are_reported() -> None:
    def second_is_bad(pool: Any, block_ids: Sequence[BlockId], checksums: Sequence[bytes | None]) -> int:
        return 0 if 1 in block_ids else len(block_ids)

    with loader(FakeClient(), FakePages(), second_is_bad) as made:
        made.submit([load_order("r", 3)])
        assert ended(made, 1) == ({"r"}, {51, 52})


@pytest.mark.parametrize("trouble", ["pins ended", "another pool", "no pool", "another shard", "a copy that fails"])
def test_any_doubt_about_a_load_makes_all_of_it_bad(trouble: str) -> None:
    client, pages = FakeClient(), FakePages()
    order = load_order("r", 2)
    if trouble == "pins ended":
        client.holds = False
    elif trouble == "another pool":
        order = load_order("r", 2, pool=b"of the life before")
    elif trouble == "no pool":
        client.pool = None  # type: ignore[assignment]
    elif trouble == "another shard":
        order = load_order("r", 2, shard=Shard(0, 1))
    else:
        pages.broken_at = 51
    with loader(client, pages) as made:
        made.submit([order])
        assert ended(made, 1) == ({"r"}, {50, 51})
        made.submit([load_order("next", 0)])
        assert ended(made, 1)[0] == {"next"}, "the thread lives on"


def store_order(name: str, n_blocks: int, *, first_token: int = 0, number: int = 0) -> StoreOrder:
    tokens = pack_tokens(range(first_token, n_blocks * BLOCK))
    return StoreOrder(number, name, TENANT, None, first_token, tokens, tuple(range(50, 50 + n_blocks)), HINTS)


@contextmanager
def saver(client: FakeClient, pages: FakePages, *, hold_s: float = 60.0, reports: bool = False) -> Iterator[Saver]:
    made = Saver(client, pages, hold_s=hold_s, tally=Tally(), reports=reports)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        client.goes_on.set()
        pages.gate.set()
        made.close()


def hashes(n_blocks: int) -> list[bytes]:
    return list(chain_hashes(ROOT, range(n_blocks * BLOCK), block_tokens=BLOCK))


def test_a_store_copies_what_is_not_there_yet_under_the_hashes_of_its_tokens() -> None:
    client, pages = FakeClient(), FakePages()
    client.n_resident = 1
    with saver(client, pages) as made:
        made.submit([store_order("r", 3)])
        until(lambda: client.saves, "it is stored")
    (chain, outcome) = client.saves[0]
    assert outcome == "stored"
    assert list(chain.hashes) == hashes(3)
    assert pages.outs == [(51, 1), (52, 2)]
    assert client.hints == [HINTS]


def test_later_orders_tell_only_the_tokens_that_are_new() -> None:
    client = FakeClient()
    with saver(client, FakePages()) as made:
        made.submit([store_order("r", 2), store_order("r", 5, first_token=8)])
        until(lambda: len(client.saves) == 2, "both are stored")
    assert list(client.saves[1][0].hashes) == hashes(5)


def test_an_order_whose_beginning_is_not_known_is_left_out() -> None:
    client = FakeClient()
    with saver(client, FakePages()) as made:
        made.submit([store_order("r", 5, first_token=8), store_order("other", 1)])
        until(lambda: client.saves, "the other is stored")
    assert [len(chain.hashes) for chain, _ in client.saves] == [1]


def test_after_cancel_returns_no_block_is_read() -> None:
    client, pages = FakeClient(), FakePages()
    pages.gate.clear()
    with saver(client, pages) as made:
        made.submit([store_order("r", 3)])
        assert pages.inside.wait(10)
        cancelling = threading.Thread(target=made.cancel, args=(["r"],))
        cancelling.start()
        cancelling.join(0.05)
        assert cancelling.is_alive(), "it waits for the copy that is under way"
        pages.gate.set()
        cancelling.join(10)
        assert not cancelling.is_alive()
        n_read = len(pages.outs)
        until(lambda: client.saves, "the store has ended")
        assert client.saves[0][1] == "Cancelled"
        assert len(pages.outs) == n_read == 1


def test_cancel_does_not_wait_for_a_socket() -> None:
    client, pages = FakeClient(), FakePages()
    client.goes_on.clear()
    with saver(client, pages) as made:
        made.submit([store_order("r", 3)])
        assert client.waits.wait(10)
        made.cancel(["r"])
        client.goes_on.set()
        until(lambda: client.saves, "the store has ended")
    assert pages.outs == []


def test_nothing_is_remembered_of_a_request_that_is_cancelled_as_its_store_begins() -> None:
    client, begins, goes_on = FakeClient(), threading.Event(), threading.Event()
    chain = client.chain

    def late_chain(*tokens: Any, **of: Any) -> Chain:
        begins.set()
        assert goes_on.wait(10)
        return chain(*tokens, **of)

    class Stepped(threading.Condition):
        """Whoever cancels is overtaken by the store where it lets go of the lock for the first time."""

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            if threading.current_thread() is threading.main_thread() and begins.is_set() and not goes_on.is_set():
                goes_on.set()
                assert client.waits.wait(10)

    client.chain = late_chain  # type: ignore[method-assign]
    with saver(client, FakePages()) as made:
        made.submit([store_order("r", 3)])
        assert begins.wait(10)
        made._changed.__class__ = Stepped
        made.cancel(["r"])
        until(lambda: client.saves, "the store has ended")
        assert made._chains == {}


def test_a_cancelled_request_may_begin_anew_at_once() -> None:
    client = FakeClient()
    client.goes_on.clear()
    with saver(client, FakePages()) as made:
        made.submit([store_order("r", 3)])
        assert client.waits.wait(10)
        made.cancel(["r"])
        made.submit([store_order("r", 2)])
        client.goes_on.set()
        until(lambda: len(client.saves) == 2, "both have ended")
    assert [outcome for _, outcome in client.saves] == ["Cancelled", "stored"]


def test_a_request_that_ended_is_named_once_all_of_it_is_copied() -> None:
    client = FakeClient()
    client.goes_on.clear()
    with saver(client, FakePages()) as made:
        made.submit([store_order("r", 3)])
        made.close_requests(["r", "nothing to store"], now=0.0)
        assert made.closed(now=1.0) == {"nothing to store"}
        assert made.closed(now=2.0) == set()
        client.goes_on.set()
        until(lambda: made.closed(now=3.0) == {"r"}, "r is closed")
        assert made.closed(now=99.0) == set()


def test_blocks_are_not_kept_longer_than_that() -> None:
    client, pages = FakeClient(), FakePages()
    client.goes_on.clear()
    with saver(client, pages, hold_s=2.0) as made:
        made.submit([store_order("r", 3)])
        assert client.waits.wait(10)
        made.close_requests(["r"], now=10.0)
        assert made.closed(now=11.9) == set()
        assert made.closed(now=12.0) == {"r"}
        client.goes_on.set()
        until(lambda: client.saves, "the store has ended")
    assert client.saves[0][1] == "Cancelled"
    assert pages.outs == []


def test_without_a_worker_orders_end_at_once() -> None:
    client = FakeClient()
    client.attached = False
    with saver(client, FakePages()) as made:
        made.submit([store_order("r", 3)])
        made.close_requests(["r"], now=0.0)
        until(lambda: made.closed(now=0.0) == {"r"}, "r is closed")
    assert not client.saves


def test_more_orders_than_may_wait_are_refused() -> None:
    client = FakeClient()
    client.goes_on.clear()
    with saver(client, FakePages()) as made:
        made.submit([store_order(f"r{index}", 1) for index in range(JOBS_MAX + 5)])
        made.close_requests([f"r{JOBS_MAX + 4}"], now=0.0)
        assert made.closed(now=0.0) == {f"r{JOBS_MAX + 4}"}


def test_another_scope_ends_what_is_under_way_in_the_old_one() -> None:
    old, new, pages = FakeClient(), FakeClient(), FakePages()
    old.goes_on.clear()
    with saver(old, pages) as made:
        made.submit([store_order("r", 3)])
        assert old.waits.wait(10)
        made.exchange(new)
        old.goes_on.set()
        made.submit([store_order("later", 1)])
        until(lambda: new.saves, "the later is stored")
        until(lambda: old.is_closed, "the old client is closed")
    assert old.saves[0][1] == "Cancelled"


def test_no_order_of_the_old_scope_is_carried_out_in_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, goes_on = FakeClient(), FakeClient(), threading.Event()
    old.goes_on.clear()
    with saver(old, FakePages()) as made:
        cancel = made.cancel

        def late_cancel(request_ids: Collection[str]) -> None:
            assert not request_ids or goes_on.wait(10)
            cancel(request_ids)

        monkeypatch.setattr(made, "cancel", late_cancel)
        made.submit([store_order("r", 1), store_order("waits", 1)])
        assert old.waits.wait(10)
        exchanging = threading.Thread(target=made.exchange, args=(new,))
        exchanging.start()
        until(lambda: made._client is new, "the client is exchanged")
        old.goes_on.set()
        made.close_requests(["r", "waits"], now=0.0)
        ended: set[str] = set()

        def both() -> bool:
            ended.update(made.closed(now=0.0))
            return ended == {"r", "waits"}

        until(both, "both have ended")
        goes_on.set()
        exchanging.join(10)
    assert not new.saves


def test_prefills_are_reported_beside_the_stores() -> None:
    client = FakeClient()
    with saver(client, FakePages()) as made:
        made.note_prefill(2000, 1.5)
        until(lambda: client.prefills == [(2000, 1.5)], "it is reported")


def reports_of(made: Saver, n: int) -> list[StoreReport]:
    found: list[StoreReport] = []

    def all_there() -> bool:
        found.extend(made.take_reports())
        return len(found) >= n

    until(all_there, f"{n} orders have ended")
    return found


@pytest.mark.parametrize(
    ("n_resident", "n_room", "new", "n_here"),
    [(1, 100, ((1, 3), (3, 5)), 5), (5, 100, (), 5), (1, 4, ((1, 3), (3, 4)), 4), (0, 0, (), 0)],
    ids=["what was missing", "all was there", "no room for all", "no room"],
)
def test_of_each_store_is_told_what_it_put_there(
    n_resident: int, n_room: int, new: tuple[tuple[int, int], ...], n_here: int
) -> None:
    client = FakeClient()
    client.n_resident, client.n_room, client.window = n_resident, n_room, 2
    with saver(client, FakePages(), reports=True) as made:
        made.submit([store_order("r", 5, number=7)])
        assert reports_of(made, 1) == [StoreReport(7, new, n_here, "cpu" if new else "")]
        assert made.take_reports() == []


@pytest.mark.parametrize("trouble", ["cancelled", "a copy that fails"])
def test_of_a_store_that_was_broken_off_the_last_run_is_not_told(trouble: str) -> None:
    client, pages = FakeClient(), FakePages()
    client.window = 2
    with saver(client, pages, reports=True) as made:
        n_out = 0

        def copy_out(sources: Sequence[int], pool: Any, slots: Sequence[BlockId]) -> None:
            nonlocal n_out
            n_out += 1
            if n_out == 4:  # the second block of the second run
                if trouble != "cancelled":
                    raise RuntimeError("no such block")
                for jobs in made._open.values():
                    jobs[0].is_live = False
            FakePages.copy_out(pages, sources, pool, slots)

        pages.copy_out = copy_out  # type: ignore[method-assign]
        made.submit([store_order("r", 6, number=7)])
        first = ((0, 2), (2, 4)) if trouble == "cancelled" else ((0, 2),)
        assert reports_of(made, 1) == [StoreReport(7, first, first[-1][1], "cpu")]


def test_orders_that_are_not_carried_out_are_told_of_too() -> None:
    client = FakeClient()
    client.goes_on.clear()
    with saver(client, FakePages(), reports=True) as made:
        orders = [store_order(f"r{number}", 1, number=number) for number in range(JOBS_MAX + 3)]
        made.submit(orders)
        made.cancel([order.request_id for order in orders])
        client.goes_on.set()
        assert sorted(report.number for report in reports_of(made, len(orders))) == list(range(len(orders)))


def test_what_was_stored_is_told_before_its_request_is_named() -> None:
    client = FakeClient()
    client.goes_on.clear()
    with saver(client, FakePages(), reports=True) as made:
        made.submit([store_order("r", 3, number=7)])
        made.close_requests(["r"], now=0.0)
        client.goes_on.set()
        until(lambda: made.closed(now=0.0) == {"r"}, "r is closed")
        assert [report.number for report in made.take_reports()] == [7]
