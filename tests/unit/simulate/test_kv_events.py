"""vLLM's event logs: which requests they show, and a sentence with the line for what is no such log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered.errors import ConfigError
from tiered.simulate.trace import Request, read_trace


def stored(hashes: list[object], parent: object = None, **more: object) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": []}
    return event | {"block_size": 16, "lora_id": None, "medium": "GPU"} | more


def batch(ts: float, *events: object, rank: int = 0) -> dict[str, object]:
    return {"ts": ts, "events": list(events), "data_parallel_rank": rank}


def read(path: Path, *lines: object, block_tokens: int | None = None) -> list[Request]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(read_trace(path, block_tokens=block_tokens))


def paths(requests: list[Request]) -> list[list[int]]:
    return [list(request.blocks) for request in requests]


def test_a_path_is_the_ancestors_and_then_the_stored_blocks(tmp_path: Path) -> None:
    requests = read(
        tmp_path / "log",
        batch(10.0, stored(["a", "b", "c"])),
        batch(20.0, stored(["x"], "b")),
        batch(30.0, stored(["d"], "c")),
    )
    assert paths(requests) == [[0, 1, 2], [0, 1, 3], [0, 1, 2, 4]]
    assert [request.arrival_s for request in requests] == [10.0, 20.0, 30.0]
    assert requests[0].block_tokens == 16


def test_what_continues_a_path_at_once_is_the_same_request(tmp_path: Path) -> None:
    requests = read(
        tmp_path / "log",
        batch(1.0, stored([1, 2])),
        batch(1.4, stored([8]), stored([3], 2)),
        batch(2.9, stored([4], 3)),
        batch(9.0, stored([5], 4)),
    )
    assert paths(requests) == [[0, 1, 3, 4], [2], [0, 1, 3, 4, 5]]


def test_two_engines_do_not_continue_each_other(tmp_path: Path) -> None:
    requests = read(tmp_path / "log", batch(1.0, stored([1]), rank=0), batch(1.1, stored([2], 1), rank=1))
    assert paths(requests) == [[0], [0, 1]]
    assert [request.fields["rank"] for request in requests] == [0, 1]


def test_arrays_of_older_versions_say_the_same(tmp_path: Path) -> None:
    requests = read(
        tmp_path / "log",
        [1.0, [["BlockStored", [7, 8], None, [0] * 32, 16, None]], 0],
        [9.0, [["BlockStored", [9], 8, [0] * 16, 16, 3, "GPU", "poems"], ["BlockRemoved", [7], "GPU"]]],
        [9.5, [["AllBlocksCleared"]]],
    )
    assert paths(requests) == [[0, 1], [0, 1, 2]]
    assert (requests[1].fields["lora_id"], requests[1].fields["lora_name"]) == (3, "poems")


def test_a_block_stored_again_after_it_left_is_asked_for_again(tmp_path: Path) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU"}
    requests = read(tmp_path / "log", batch(1.0, stored([1, 2])), batch(5.0, removed), batch(9.0, stored([1, 2])))
    assert paths(requests) == [[0, 1], [0, 1]]


def test_copies_below_and_other_layer_groups_are_not_requests(tmp_path: Path) -> None:
    events = [stored([1]), stored([1], medium="CPU"), stored([5], group_idx=1), stored([6], medium=None)]
    assert paths(read(tmp_path / "log", batch(1.0, *events))) == [[0], [1]]


def test_a_parent_from_before_the_log_begins_its_path(tmp_path: Path) -> None:
    assert paths(read(tmp_path / "log", batch(1.0, stored([2], 1)))) == [[0, 1]]


def test_ancestors_that_are_named_later_belong_to_earlier_paths_too(tmp_path: Path) -> None:
    lines = [batch(1.0, stored([2], 1)), batch(9.0, stored([1], 0)), batch(19.0, stored([3], 1))]
    assert paths(read(tmp_path / "log", *lines)) == [[2, 0, 1], [2, 0], [2, 0, 3]]


def test_requests_come_by_time_and_can_be_coarsened(tmp_path: Path) -> None:
    lines = [batch(5.0, stored([1, 2, 3, 4, 5])), batch(2.0, stored([9, 8]), rank=1)]
    requests = read(tmp_path / "log", *lines, block_tokens=32)
    assert [request.arrival_s for request in requests] == [2.0, 5.0]
    assert paths(requests) == [[6], [1, 3]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"ts": 1.0}, "Object missing required field `events`"),
        ({"ts": "x", "events": []}, "Expected `float`, got `str` - at `$.ts`"),
        ([1.0], "Expected `array` of at least length 2"),
        (batch(1.0, {"type": "BlockLost"}), "an event of type 'BlockLost' is none of BlockStored"),
        (batch(1.0, []), "an event of type None"),
        (batch(1.0, {"type": "BlockStored", "block_size": 16}), "missing required field `block_hashes`"),
        (batch(1.0, stored([1], block_size=0)), "block_size 0 is not a number of tokens"),
        (batch(1.0, stored([])), "names no block_hashes"),
        (batch(1.0, stored([1, 1])), "a block comes twice"),
        (batch(1.0, stored([1], 1)), "a block comes twice"),
    ],
)
def test_a_malformed_line_is_named_by_its_number_with_the_reason(tmp_path: Path, line: object, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "log.jsonl", batch(0.0), line)
    assert "log.jsonl, line 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_parents_that_lead_round_in_a_circle_are_refused(tmp_path: Path) -> None:
    lines = [batch(1.0, stored([1], 2)), batch(9.0, stored([2], 1)), batch(19.0, stored([3], 1))]
    with pytest.raises(ConfigError, match="line 1: parent_block_hash leads back to the block itself"):
        read(tmp_path / "log", *lines)
