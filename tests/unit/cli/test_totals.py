"""Totals on the command line: what is sent, what is shown, what is refused; and the replicas that status lists."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.test_commands import STATS
from tiered.cli.bodies import Tenant
from tiered.cli.bounds import policy_changes
from tiered.cli.cluster_file import ClusterState, write_cluster_file
from tiered.cli.status import coordinator_lines, other_coordinators
from tiered.cli.tenants import policy_lines, tenant_row, total_lines
from tiered.errors import ConfigError


def tenant(**policy: object) -> Tenant:
    fields = {
        "tenant": "red",
        "hot_reserved_bytes": 0,
        "hot_limit_bytes": None,
        "redis_reserved_bytes": 0,
        "redis_limit_bytes": None,
        "weight": 1.0,
        "over_quota": "evict_own",
    }
    return msgspec.convert(
        {
            "policy": fields | policy,
            "named": True,
            "hot": {"used_bytes": 0, "blocks": 0},
            "redis": {"used_bytes": 0, "pending_bytes": 0, "blocks": 0},
            "tokens": {"asked": 0, "hot": 0, "peer": 0, "redis": 0, "missed": 0},
            "hot_reserved_in_force_bytes": 1 << 20,
            "hot_lent_bytes": None if policy.get("hot_total_limit_bytes") is None else 3 << 20,
        },
        Tenant,
    )


def test_totals_are_sent_in_bytes_and_none_lifts_the_limit() -> None:
    changes = policy_changes({"hot_total_reserved": "1GiB", "hot_total_limit": "none"})
    assert changes == {"hot_total_reserved_bytes": 1 << 30, "hot_total_limit_bytes": None}


@pytest.mark.parametrize(
    ("flag", "text"), [("hot_total_limit", "4096blocks"), ("hot_total_limit", "-1"), ("hot_total_reserved", "none")]
)
def test_a_total_that_is_no_size_is_refused_naming_the_flag(flag: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')}"):
        policy_changes({flag: text})


def test_totals_are_shown_beside_the_bounds_per_node_with_what_is_in_force() -> None:
    row = tenant_row(tenant(hot_total_limit_bytes=4 << 20, hot_total_reserved_bytes=2 << 20))
    assert "0 B, 2 MiB in total" in row
    assert any(cell == "none, 4 MiB in total" for cell in row)
    [(name, text)] = total_lines(tenant(hot_total_limit_bytes=4 << 20, hot_total_reserved_bytes=2 << 20))
    assert name == "hot totals"
    for part in ("2 MiB reserved", "limit 4 MiB", "1 MiB reserved in force", "3 MiB lent"):
        assert part in text
    assert total_lines(tenant()) == []


def test_the_limit_in_redis_that_is_shown_is_the_one_in_force() -> None:
    bound = msgspec.structs.replace(tenant(), redis_limit_in_force_bytes=2 << 20)
    assert tenant_row(bound)[6] == "2 MiB"
    assert "limit 2 MiB, the default's" in dict(policy_lines(bound))["redis bounds"]
    own = msgspec.structs.replace(tenant(redis_limit_bytes=1 << 20), redis_limit_in_force_bytes=1 << 20)
    assert dict(policy_lines(own))["redis bounds"].endswith("limit 1 MiB")
    assert "default" not in dict(policy_lines(tenant()))["redis bounds"]


def test_status_lists_the_replicas_of_this_machines_cluster_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERED_CACHE_DIR", str(tmp_path))
    one, two = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert other_coordinators(one) == []
    write_cluster_file(ClusterState(one, "redis://h", "ns", os.getpid(), [], coordinators=[one, two]))
    assert other_coordinators(one) == [two]
    assert other_coordinators(two) == [one]
    assert other_coordinators("http://elsewhere:1") == []
    leading = msgspec.structs.replace(STATS, is_leader=True, leader="c")
    assert coordinator_lines(one, [two], leading) == [("coordinator", f"{one} (leads)"), ("coordinator", two)]
    following = msgspec.structs.replace(STATS, is_leader=False, leader="host-7-ab")
    assert coordinator_lines(one, [], following) == [("coordinator", one), ("leader", "host-7-ab")]
    assert coordinator_lines(one, [], STATS) == [("coordinator", one)]
