"""What happened, in words: every kind has its own, and none breaks on a detail that is missing or strange."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coordinator.view.sentences import _WORDS, sentence
from tiered.types import BlockHash, Happening

BLOCK = BlockHash(b"b" * 32)
STANDING = {"used": 3 << 20, "limit": 4 << 20, "reserved": 1 << 20}
ASKER = {"for_tenant": "blue", "for_used": 0, "for_limit": -1, "for_reserved": 0}


def told(what: str, tier: str = "hot", n_blocks: int = 1, **detail: int | float | str) -> str:
    return sentence(Happening(what, BLOCK, "red", tier, n_blocks, detail))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (told("stored", depth=3), "stored: an engine computed it, depth 3"),
        (
            told("stored", n_blocks=8, depth=0, place=4),
            "stored: an engine computed it, number 5 of 8 blocks of one prefix, depth 0",
        ),
        (
            told("fetched", n_blocks=2, depth=1, source="peer"),
            "fetched: it came from another node, the first of 2 blocks of one prefix, depth 1",
        ),
        (told("adopted", hits=2), "adopted: taken over from this node's earlier life, twice hit"),
        (
            told("evicted", policy="sieve", rank=0, hits=0, idle=1500, why="room", copy="never", **STANDING, **ASKER),
            "evicted: sieve chose it first (never hit, last used 1,500 uses of the pool ago), so that blue could "
            "have the room; red had 3 MiB of 4 MiB, 1 MiB reserved, blue 0 B without a limit; "
            "no copy: pool.demote is never",
        ),
        (
            told(
                "evicted", policy="lru", rank=3, hits=1, why="own limit", for_tenant="red", copy="begun", **STANDING
            ),
            "evicted: lru chose it after 3 that might not leave (once hit), since red stood at its own limit; "
            "red had 3 MiB of 4 MiB, 1 MiB reserved; a copy for Redis was begun",
        ),
        (told("uncopied", stays=0), "not copied: the queue of copies was full, and it left without one"),
        (
            told("parted", why="limit lowered", users_left=1, **STANDING),
            "let go of by red, since red's limit was lowered; another tenant still uses it; red had 3 MiB of 4 MiB, "
            "1 MiB reserved",
        ),
        (
            told("refused", n_blocks=9, why="full", free_blocks=0, pool_blocks=1024, **STANDING),
            "refused: red got no room for 9 blocks: nothing in the pool might leave for it; red had 3 MiB of 4 MiB, "
            "1 MiB reserved; 0 of 1,024 blocks were free",
        ),
        (
            told("missed", source="redis", behind=4),
            "missed: the directory had promised it at Redis, and it was not there, or not good; 4 blocks behind it "
            "were asked for in vain",
        ),
        (
            told("corrupt", "redis", why="checksum"),
            "corrupt: the value in Redis was not good (checksum) and was not used",
        ),
        (
            told("stored", "redis", why="after reclaiming"),
            "stored in Redis, after others gave what they had borrowed",
        ),
        (told("refused", "redis", why="quota"), "refused by Redis: red stood at its limit"),
        (
            told("refused", "redis", why="full", tier_used=2048, capacity=2048, **STANDING),
            "refused by Redis: the tier was full; red had 3 MiB of 4 MiB, 1 MiB reserved; "
            "the tier held 2 KiB of 2 KiB",
        ),
        (
            told("evicted", "redis", why="room", idle_s=12.34, tier_used=1, capacity=-1, **STANDING, **ASKER),
            "evicted from Redis, unused for 12.3 s, so that blue could have the room; red had 3 MiB of 4 MiB, 1 MiB "
            "reserved, blue 0 B without a limit; the tier held 1 B",
        ),
        (
            told("expired", "redis", idle_s=60),
            "expired in Redis: red had not used it for longer than its redis_ttl_s, unused for 60.0 s",
        ),
        (told("lost", "redis", why="the server lost it"), "lost by Redis: the server lost it"),
        (
            told("planned", n_blocks=9, decision="compute", ttft_s=2.0, computed_s=2.0),
            "planned: to compute 9 blocks that others have, which is sooner; a first token was expected after 2 s",
        ),
        (
            told("planned", decision="fetch_all", ttft_s=0.0, computed_s=0.32, **{"from peer w1": 20}),
            "planned: to fetch 20 blocks from peer w1; a first token was expected at once, as long as nothing is "
            "known of the source, and after 0.32 s with all of it computed",
        ),
        (told("cleared"), "cleared from the pool: somebody asked for it"),
        (
            told(
                "planned",
                decision="fetch_part",
                ttft_s=0.5,
                computed_s=2.0,
                **{"from peer w1": 8, "from redis": 4},
            ),
            "planned: to fetch 8 blocks from peer w1 and 4 blocks from redis, and to compute the rest, which "
            "is sooner; a first token was expected after 0.5 s, and after 2 s with all "
            "of it computed",
        ),
        (told("beamed", colour="blue", at_x=3), "beamed: colour blue, at x 3"),
        (told("beamed"), "beamed"),
    ],
)
def test_each_kind_is_told_in_its_words(said: str, words: str) -> None:
    assert said == words


STRANGE: tuple[Mapping[str, int | float | str], ...] = (
    {},
    {
        "hits": -1,
        "idle": "much",
        "rank": 1.5,
        "used": "all",
        "limit": -5,
        "copy": 7,
        "why": 3,
        "source": 2,
        "place": 0,
    },
    {"idle_s": "long", "ttft_s": "soon", "computed_s": "x", "from redis": "few", "users_left": "some"},
    {"for_used": 1, "idle_s": 0, "capacity": 1 << 62, "tier_used": 1 << 62, "why": "", "for_tenant": ""},
)


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize(("tier", "what"), sorted(_WORDS))
@pytest.mark.parametrize("n_blocks", [0, 1, 1_000])
def test_no_detail_that_is_missing_or_strange_breaks_a_sentence(
    tier: str, what: str, strange: Mapping[str, int | float | str], n_blocks: int
) -> None:
    said = sentence(Happening(what, BLOCK, "red", tier, n_blocks, dict(strange)))
    assert said
    assert "\n" not in said
