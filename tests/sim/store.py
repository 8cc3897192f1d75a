"""The shared state's data commands in plain Python: as much of a Redis server as the cluster asks for.

Owns keys, values and times to live; the scripts run over it (:mod:`tests.sim.scripting`). Commands come as a
server gets
them, words of bytes, and replies go as a server gives them: ints, bytes, lists, None. What is not served is an
error, so that nobody simulates a server that does nothing. ``test_store.py`` holds it to a real one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from tests.sim.kinds import Members, SortedSet, Stream, entry_of, members_of, places, score_text, seq_of
from tests.sim.loop import STARTED_S

Reply = Any

OK: Final = b"OK"


class ReplyError(Exception):
    """The server's word for a command that it does not take."""


class Store:
    """now: the simulation's seconds. page: how much one step of a scan gives at most, to have several of them."""

    def __init__(self, now: Callable[[], float], *, page: int = 2_000) -> None:
        self._now = now
        self._page = page
        self.keys: dict[bytes, Any] = {}
        self._ends: dict[bytes, int] = {}
        self._commands: dict[bytes, Callable[..., Reply]] = {
            name[5:].upper().encode(): getattr(self, name) for name in dir(self) if name.startswith("_cmd_")
        }

    def flush(self) -> None:
        self.keys.clear()
        self._ends.clear()

    def clock_us(self) -> int:
        return round((STARTED_S + self._now()) * 1e6)

    def clock_ms(self) -> int:
        return self.clock_us() // 1_000

    def do(self, words: Sequence[bytes]) -> Reply:
        """Run one command. Errors: ReplyError."""
        command = self._commands.get(words[0].upper())
        if command is None:
            raise ReplyError(f"unknown command {words[0].decode()!r}")
        return command(*words[1:])

    def live_keys(self) -> Iterator[bytes]:
        return (key for key in list(self.keys) if self._get(key) is not None)

    # Keys and times to live.

    def _get(self, key: bytes) -> Any:
        ends = self._ends.get(key)
        if ends is not None and ends <= self.clock_ms():
            self._drop(key)
            return None
        return self.keys.get(key)

    def _drop(self, key: bytes) -> bool:
        self._ends.pop(key, None)
        return self.keys.pop(key, None) is not None

    def _typed(self, key: bytes, kind: type) -> Any:
        value = self._get(key)
        if value is not None and type(value) is not kind:
            raise ReplyError("WRONGTYPE")
        return value

    def _made(self, key: bytes, kind: type) -> Any:
        value = self._typed(key, kind)
        if value is None:
            value = self.keys[key] = kind()
        return value

    def _tidy(self, key: bytes, held: Any) -> None:
        """A collection ends with its last member."""
        if not held:
            self._drop(key)

    def _cmd_ping(self) -> Reply:
        return b"PONG"

    def _cmd_time(self) -> Reply:
        now = self.clock_us()
        return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]

    def _cmd_exists(self, *keys: bytes) -> Reply:
        return sum(self._get(key) is not None for key in keys)

    def _cmd_del(self, *keys: bytes) -> Reply:
        return sum(self._get(key) is not None and self._drop(key) for key in keys)

    _cmd_unlink = _cmd_del

    def _cmd_persist(self, key: bytes) -> Reply:
        return int(self._get(key) is not None and self._ends.pop(key, None) is not None)

    def _cmd_pexpire(self, key: bytes, ms: bytes) -> Reply:
        if self._get(key) is None:
            return 0
        self._ends[key] = self.clock_ms() + int(ms)
        return 1

    def _cmd_pttl(self, key: bytes) -> Reply:
        if self._get(key) is None:
            return -2
        ends = self._ends.get(key)
        return -1 if ends is None else ends - self.clock_ms()

    def _cmd_scan(self, cursor: bytes, *words: bytes) -> Reply:
        options = dict(zip(words[::2], words[1::2], strict=True))
        pattern = options.get(b"MATCH", b"*").decode("latin-1")
        names = [key for key in self.live_keys() if fnmatchcase(key.decode("latin-1"), pattern)]
        return self._paged(names, int(cursor), int(options.get(b"COUNT", b"10")))

    def _paged(self, names: list[bytes], cursor: int, count: int) -> list[Any]:
        """What is there throughout is given; a cursor is a place among the last two bytes that names may have."""
        count = min(count, self._page)
        if cursor == 0 and len(names) <= count:
            return [b"0", names]
        placed = sorted((int.from_bytes(name[-2:]), name) for name in names)
        rest = placed[bisect_left(placed, (cursor, b"")) :]
        if len(rest) <= count:
            return [b"0", [name for _, name in rest]]
        ends = rest[count - 1][0] + 1
        return [b"%d" % ends, [name for place, name in rest if place < ends]]

    # Strings.

    def _cmd_get(self, key: bytes) -> Reply:
        return self._typed(key, bytes)

    def _cmd_mget(self, *keys: bytes) -> Reply:
        if not self._ends:
            return [self.keys.get(key) for key in keys]
        return [self._get(key) for key in keys]

    def _cmd_set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        words = [option.upper() for option in options]
        if b"NX" in words and self._get(key) is not None:
            return None
        self.keys[key] = value
        if b"PX" in words:
            self._ends[key] = self.clock_ms() + int(options[words.index(b"PX") + 1])
        else:
            self._ends.pop(key, None)
        return OK

    def _cmd_mset(self, *pairs: bytes) -> Reply:
        self.keys.update(zip(pairs[::2], pairs[1::2], strict=True))
        if self._ends:
            for key in pairs[::2]:
                self._ends.pop(key, None)
        return OK

    def _cmd_incrby(self, key: bytes, more: bytes) -> Reply:
        value = int(self._typed(key, bytes) or 0) + int(more)
        self.keys[key] = b"%d" % value
        return value

    def _cmd_incr(self, key: bytes) -> Reply:
        return self._cmd_incrby(key, b"1")

    def _cmd_strlen(self, key: bytes) -> Reply:
        return len(self._typed(key, bytes) or b"")

    def _cmd_getrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        return (self._typed(key, bytes) or b"")[int(first) : int(last) + 1]

    # Hashes.

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] | None = self._typed(key, dict)
        return found or {}

    def _cmd_hget(self, key: bytes, name: bytes) -> Reply:
        return self._hash(key).get(name)

    def _cmd_hmget(self, key: bytes, *names: bytes) -> Reply:
        held = self._hash(key)
        return [held.get(name) for name in names]

    def _cmd_hgetall(self, key: bytes) -> Reply:
        return [word for pair in self._hash(key).items() for word in pair]

    def _cmd_hkeys(self, key: bytes) -> Reply:
        return list(self._hash(key))

    def _cmd_hlen(self, key: bytes) -> Reply:
        return len(self._hash(key))

    def _cmd_hexists(self, key: bytes, name: bytes) -> Reply:
        return int(name in self._hash(key))

    def _cmd_hset(self, key: bytes, *pairs: bytes) -> Reply:
        held = self._made(key, dict)
        before = len(held)
        held.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(held) - before

    def _cmd_hsetnx(self, key: bytes, name: bytes, value: bytes) -> Reply:
        held = self._made(key, dict)
        return int(held.setdefault(name, value) is value)

    def _cmd_hdel(self, key: bytes, *names: bytes) -> Reply:
        held = self._typed(key, dict)
        if held is None:
            return 0
        n = sum(held.pop(name, None) is not None for name in names)
        self._tidy(key, held)
        return n

    def _cmd_hincrby(self, key: bytes, name: bytes, more: bytes) -> Reply:
        held = self._made(key, dict)
        value = int(held.get(name, 0)) + int(more)
        held[name] = b"%d" % value
        return value

    # Sets. A dict, so that their order does not depend on how bytes are hashed.

    def _set(self, key: bytes) -> Members:
        found: Members | None = self._typed(key, Members)
        return Members() if found is None else found

    def _cmd_sadd(self, key: bytes, *members: bytes) -> Reply:
        held = self._made(key, Members)
        before = len(held)
        held.update(dict.fromkeys(members))
        return len(held) - before

    def _cmd_srem(self, key: bytes, *members: bytes) -> Reply:
        held = self._typed(key, Members)
        if held is None:
            return 0
        before = len(held)
        for member in members:
            held.pop(member, None)
        n = before - len(held)
        self._tidy(key, held)
        return n

    def _cmd_scard(self, key: bytes) -> Reply:
        return len(self._set(key))

    def _cmd_sismember(self, key: bytes, member: bytes) -> Reply:
        return int(member in self._set(key))

    def _cmd_smismember(self, key: bytes, *members: bytes) -> Reply:
        held = self._set(key)
        return [1 if member in held else 0 for member in members]

    def _cmd_smembers(self, key: bytes) -> Reply:
        return list(self._set(key))

    def _cmd_spop(self, key: bytes, count: bytes) -> Reply:
        held = self._typed(key, Members)
        if held is None:
            return []
        popped = [member for member, _ in zip(held, range(int(count)), strict=False)]
        for member in popped:
            del held[member]
        self._tidy(key, held)
        return popped

    def _cmd_sscan(self, key: bytes, cursor: bytes, *words: bytes) -> Reply:
        return self._paged(list(self._set(key)), int(cursor), int(words[1]))

    # Sorted sets.

    def _zset(self, key: bytes) -> SortedSet:
        return self._typed(key, SortedSet) or SortedSet()

    def _cmd_zadd(self, key: bytes, *words: bytes) -> Reply:
        options, first = set(), 0
        while words[first].upper() in (b"XX", b"GT"):
            options.add(words[first].upper())
            first += 1
        held = self._typed(key, SortedSet)
        if held is None:
            if b"XX" in options:
                return 0
            held = self.keys[key] = SortedSet()
        n = 0
        for text, member in zip(words[first::2], words[first + 1 :: 2], strict=True):
            score, before = float(text), held.scores.get(member)
            if (b"XX" in options and before is None) or (b"GT" in options and before is not None and score <= before):
                continue
            n += held.put(member, score)
        return n

    def _cmd_zrem(self, key: bytes, *members: bytes) -> Reply:
        held = self._typed(key, SortedSet)
        if held is None:
            return 0
        n = sum(held.drop(member) for member in members)
        self._tidy(key, held.scores)
        return n

    def _cmd_zcard(self, key: bytes) -> Reply:
        return len(self._zset(key).scores)

    def _cmd_zscore(self, key: bytes, member: bytes) -> Reply:
        score = self._zset(key).scores.get(member)
        return None if score is None else score_text(score)

    def _cmd_zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> Reply:
        order = self._zset(key).order
        start, end = places(int(first), int(last), len(order))
        return members_of(order[start:end], with_scores=b"WITHSCORES" in options)

    def _cmd_zrevrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        order = self._zset(key).order[::-1]
        start, end = places(int(first), int(last), len(order))
        return members_of(order[start:end], with_scores=False)

    def _cmd_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
        order = self._zset(key).order
        found = order[bisect_left(order, (float(low), b"")) : bisect_right(order, float(high), key=lambda e: e[0])]
        if options and options[0].upper() == b"LIMIT":
            found = found[int(options[1]) : int(options[1]) + int(options[2])]
        return members_of(found, with_scores=False)

    def _cmd_zremrangebyrank(self, key: bytes, first: bytes, last: bytes) -> Reply:
        held = self._zset(key)
        start, end = places(int(first), int(last), len(held.order))
        gone = [member for _, member in held.order[start:end]]
        return self._cmd_zrem(key, *gone) if gone else 0

    def _cmd_zscan(self, key: bytes, cursor: bytes, *words: bytes) -> Reply:
        held = self._zset(key).scores
        rest, members = self._paged(list(held), int(cursor), int(words[1]))
        return [rest, [word for member in members for word in (member, score_text(held[member]))]]

    # Lists: newest first.

    def _cmd_lpush(self, key: bytes, *values: bytes) -> Reply:
        held = self._made(key, list)
        held[:0] = values[::-1]
        return len(held)

    def _cmd_ltrim(self, key: bytes, first: bytes, last: bytes) -> Reply:
        held = self._typed(key, list)
        if held is not None:
            start, end = places(int(first), int(last), len(held))
            del held[end:], held[:start]
            self._tidy(key, held)
        return OK

    def _cmd_lrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        held = self._typed(key, list) or []
        start, end = places(int(first), int(last), len(held))
        return held[start:end]

    # Streams whose ids are 0-1, 0-2, ...

    def _cmd_xadd(
        self, key: bytes, maxlen: bytes, about: bytes, n_max: bytes, new_id: bytes, *fields: bytes
    ) -> Reply:
        if (maxlen.upper(), about, new_id) != (b"MAXLEN", b"~", b"0-*"):
            raise ReplyError("XADD is served as the scripts use it")
        stream = self._made(key, Stream)
        stream.last += 1
        stream.entries.append((stream.last, fields))
        if len(stream.entries) > int(n_max) + 100:  # a server drops whole nodes of a hundred
            del stream.entries[:100]
        return b"0-%d" % stream.last

    def _stream(self, key: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
        return (self._typed(key, Stream) or Stream()).entries

    def _cmd_xrange(self, key: bytes, start: bytes, end: bytes, count: bytes, n: bytes) -> Reply:
        entries = self._stream(key)
        first = 0 if start == b"-" else bisect_left(entries, seq_of(start), key=lambda entry: entry[0])
        return [entry_of(entry) for entry in entries[first : first + int(n)]]

    def _cmd_xrevrange(self, key: bytes, end: bytes, start: bytes, count: bytes, n: bytes) -> Reply:
        return [entry_of(entry) for entry in self._stream(key)[: -int(n) - 1 : -1]]

    # Replicas: there are none.

    def _cmd_info(self, section: bytes) -> Reply:
        return b"# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"

    def _cmd_wait(self, n_replicas: bytes, ms: bytes) -> Reply:
        return 0
