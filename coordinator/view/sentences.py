"""What happened to a block, as one line that a person understands.

Owns the wording alone. A kind that is not known here, such as a later worker's, is told with its details as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tiered.types import Happening, Source

Detail: TypeAlias = Mapping[str, int | float | str]

ANOTHER: Final = "another tenant"
"""In place of a name that the reader may not know."""


def sentence(happening: Happening) -> str:
    """Without a full stop, so that it may stand in a list."""
    words = _WORDS.get((happening.tier, happening.what))
    if words is None:
        return _plain(happening)
    return words(happening, happening.detail)


def _plain(happening: Happening) -> str:
    details = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in happening.detail.items())
    return f"{happening.what}: {details}" if details else happening.what


def _evicted(happening: Happening, of: Detail) -> str:
    use = f"{_times(_int(of, 'hits'))} hit"
    if "idle" in of:
        use += f", last used {_int(of, 'idle'):,} uses of the pool ago"
    return (
        f"evicted: {of.get('policy') or 'the policy'} {_choice(_int(of, 'rank'))} ({use}), {_for_whom(happening)}; "
        f"{_standing(happening)}; {_COPIES.get(str(of.get('copy')), 'no copy')}"
    )


def _choice(rank: int) -> str:
    return "chose it first" if rank == 0 else f"chose it after {rank:,} that might not leave"


def _for_whom(happening: Happening) -> str:
    of, tenant = happening.detail, happening.tenant
    other = str(of.get("for_tenant", ""))
    why = str(of.get("why", ""))
    if why == "room":
        if other and other != tenant:
            return f"so that {other} could have the room"
        return f"so that {tenant} itself could have the room, since there was no other"
    return {
        "own limit": f"since {tenant} stood at its own limit",
        "limit lowered": f"since {tenant}'s limit was lowered",
        "ahead of need": "to keep some room free ahead of need",
        "larger part": f"since {tenant}'s part of a shared block became larger",
    }.get(why, why)


def _standing(happening: Happening) -> str:
    of = happening.detail
    own = f"{happening.tenant} had {_share(of, '')}"
    if "for_used" not in of:
        return own
    return f"{own}, {of.get('for_tenant')} {_share(of, 'for_')}"


def _share(of: Detail, prefix: str) -> str:
    used, limit, reserved = (_int(of, prefix + name) for name in ("used", "limit", "reserved"))
    bound = f"of {_bytes(limit)}" if limit >= 0 else "without a limit"
    return f"{_bytes(used)} {bound}" + (f", {_bytes(reserved)} reserved" if reserved else "")


_COPIES: Final[Mapping[str, str]] = {
    "begun": "a copy for Redis was begun",
    "not reused": "no copy: it was never hit again (pool.demote is reused)",
    "never": "no copy: pool.demote is never",
    "no tier below": "no copy: there is no tier below",
    "made before": "Redis had been given a copy before",
    "no time": "no copy: the room was needed at once",
}


def _stored(happening: Happening, of: Detail) -> str:
    return f"stored: {_of_run(happening, 'an engine computed it')}, depth {_int(of, 'depth')}"


def _fetched(happening: Happening, of: Detail) -> str:
    source = "Redis" if of.get("source") == Source.REDIS.value else "another node"
    return f"fetched: {_of_run(happening, f'it came from {source}')}, depth {_int(of, 'depth')}"


def _of_run(happening: Happening, what: str) -> str:
    n = happening.n_blocks
    if n == 1:
        return what
    place = happening.detail.get("place")
    which = f"the first of {n}" if place is None else f"number {int(place) + 1} of {n}"
    return f"{what}, {which} blocks of one prefix"


def _parted(happening: Happening, of: Detail) -> str:
    n_left = _int(of, "users_left")
    left = f"; {n_left:,} other tenants still use it" if n_left > 1 else "; another tenant still uses it"
    if "users_left" not in of:
        left = "; others still use it"
    return f"let go of by {happening.tenant}, {_for_whom(happening)}{left}; {_standing(happening)}"


def _refused(happening: Happening, of: Detail) -> str:
    why = {
        "quota": "it stood at its limit and had nothing that might leave, or its policy is to refuse",
        "full": "nothing in the pool might leave for it",
        "busy": "somebody else was writing it",
        "draining": "the node is on its way out and takes nothing new",
    }.get(str(of.get("why")), str(of.get("why")))
    free = (
        f"; {_int(of, 'free_blocks'):,} of {_int(of, 'pool_blocks'):,} blocks were free"
        if "free_blocks" in of
        else ""
    )
    n = f"{happening.n_blocks:,} blocks" if happening.n_blocks > 1 else "a block"
    return f"refused: {happening.tenant} got no room for {n}: {why}; {_standing(happening)}{free}"


def _missed(_: Happening, of: Detail) -> str:
    where = "Redis" if of.get("source") == Source.REDIS.value else "another node"
    behind = _int(of, "behind")
    in_vain = f"; {behind:,} blocks behind it were asked for in vain" if behind > 0 else ""
    return f"missed: the directory had promised it at {where}, and it was not there, or not good{in_vain}"


def _uncopied(_: Happening, of: Detail) -> str:
    fate = "it stays" if of.get("stays") else "it left without one"
    return f"not copied: the queue of copies was full, and {fate}"


def _planned(happening: Happening, of: Detail) -> str:
    fetched = " and ".join(f"{value} blocks {name}" for name, value in of.items() if name.startswith("from "))
    what = {
        "fetch_all": f"to fetch {fetched}",
        "fetch_part": f"to fetch {fetched}, and to compute the rest, which is sooner",
        "compute": f"to compute {happening.n_blocks} blocks that others have, which is sooner",
    }.get(str(of.get("decision")), str(of.get("decision", "")))
    ttft_s, computed_s = _float(of, "ttft_s"), _float(of, "computed_s")
    if not computed_s:
        return f"planned: {what}"
    soon = f"after {ttft_s:.3g} s" if ttft_s else "at once, as long as nothing is known of the source"
    otherwise = f", and after {computed_s:.3g} s with all of it computed" if fetched else ""
    return f"planned: {what}; a first token was expected {soon}{otherwise}"


def _put(happening: Happening, of: Detail) -> str:
    if happening.what == "stored":
        how = str(of.get("why", ""))
        room = {
            "there was room": "",
            "after evicting own": f", after {happening.tenant} gave older blocks of its own",
            "after reclaiming": ", after others gave what they had borrowed",
        }.get(how, f", {how}")
        return f"stored in Redis{room}"
    return {
        "there": "Redis has it already, or another node is writing it there",
        "failed": "not stored in Redis: it did not answer, or took too long",
    }[happening.what]


def _put_refused(happening: Happening, of: Detail) -> str:
    why = {"quota": f"{happening.tenant} stood at its limit", "full": "the tier was full"}
    start = f"refused by Redis: {why.get(str(of.get('why')), str(of.get('why')))}"
    return f"{start}; {_standing(happening)}{_tier(of)}" if "used" in of else start


def _book(happening: Happening, of: Detail) -> str:
    idle = f", unused for {_float(of, 'idle_s'):,.1f} s" if "idle_s" in of else ""
    if happening.what == "evicted":
        return f"evicted from Redis{idle}, {_for_whom(happening)}; {_standing(happening)}{_tier(of)}"
    if happening.what == "expired":
        return f"expired in Redis: {happening.tenant} had not used it for longer than its redis_ttl_s{idle}"
    word = {"cleared": "cleared from Redis", "removed": "removed from Redis", "lost": "lost by Redis"}
    return f"{word.get(happening.what, happening.what)}: {of.get('why', '')}{idle}"


def _tier(of: Detail) -> str:
    if "tier_used" not in of:
        return ""
    capacity = _int(of, "capacity")
    return f"; the tier held {_bytes(_int(of, 'tier_used'))}" + (f" of {_bytes(capacity)}" if capacity >= 0 else "")


_HOT, _REDIS = Source.HOT.value, Source.REDIS.value

_WORDS: Final[Mapping[tuple[str, str], Callable[[Happening, Detail], str]]] = {
    (_HOT, "stored"): _stored,
    (_HOT, "fetched"): _fetched,
    (_HOT, "adopted"): lambda _, of: (
        f"adopted: taken over from this node's earlier life, {_times(_int(of, 'hits'))} hit"
    ),
    (_HOT, "planned"): _planned,
    (_HOT, "cleared"): lambda _, of: "cleared from the pool: somebody asked for it",
    (_HOT, "recalled"): lambda _, of: "recalled: asked for while it was leaving, so it stayed",
    (_HOT, "evicted"): _evicted,
    (_HOT, "demoted"): lambda _, of: "demoted: it left, and its copy went on to Redis",
    (_HOT, "copied"): lambda _, of: "copied: it stays, and a copy went on to Redis",
    (_HOT, "uncopied"): _uncopied,
    (_HOT, "parted"): _parted,
    (_HOT, "refused"): _refused,
    (_HOT, "missed"): _missed,
    (_HOT, "torn"): lambda _, of: "torn: its copy was not what had been committed, and was thrown away",
    (_REDIS, "corrupt"): lambda _, of: f"corrupt: the value in Redis was not good ({of.get('why')}) and was not used",
    (_REDIS, "stored"): _put,
    (_REDIS, "there"): _put,
    (_REDIS, "failed"): _put,
    (_REDIS, "refused"): _put_refused,
    (_REDIS, "evicted"): _book,
    (_REDIS, "parted"): _parted,
    (_REDIS, "expired"): _book,
    (_REDIS, "cleared"): _book,
    (_REDIS, "removed"): _book,
    (_REDIS, "lost"): _book,
    (_REDIS, "stray"): _book,
}

KNOWN: Final = _WORDS.keys()
"""Tier and kind of what there are words for."""


def _int(of: Detail, name: str) -> int:
    value = of.get(name, 0)
    return int(value) if isinstance(value, int | float) else 0


def _float(of: Detail, name: str) -> float:
    value = of.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _times(n: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(n, f"{n:,} times")


def _bytes(n: int) -> str:
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
