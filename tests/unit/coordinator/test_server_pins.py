from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.unit.coordinator.conftest import Parts
from tests.unit.coordinator.test_server_tenants import error_of
from tiered.cluster.ledger import ReserveAnswer, ReserveRequest
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, TenantId

ACME = TenantId("acme")
BLOCKS = [BlockHash(bytes([i]) * 32) for i in range(4)]
PINS = "/v1/tenants/acme/pins"


def store(parts: Parts, block: BlockHash) -> ReserveAnswer:
    answer = parts.ledger.reserve([ReserveRequest(block, ACME, 10, 0)], ttl_s=30.0)[0]
    if answer.reserved:
        parts.client.set(parts.keys.block(block), b"x" * 10)
        assert parts.ledger.commit([(block, ACME, 10)]) == [True]
    return answer


def body(*blocks: BlockHash, **fields: object) -> dict[str, object]:
    return {"hashes": [block.hex() for block in blocks], **fields}


def test_a_pinned_prefix_stays_until_its_pin_is_released(api: TestClient, parts: Parts) -> None:
    parts.tenants.create(TenantPolicy(tenant="acme", redis_limit_bytes=20))
    store(parts, BLOCKS[0])
    store(parts, BLOCKS[1])
    assert api.put(PINS, json=body(*BLOCKS[:3], lease_s=60)).json() == {"blocks": 2}
    assert store(parts, BLOCKS[3]) is ReserveAnswer.REFUSED_QUOTA
    assert api.post(f"{PINS}/release", json=body(BLOCKS[0])).json() == {"blocks": 1}
    assert store(parts, BLOCKS[3]) is ReserveAnswer.RESERVED_AFTER_EVICTING_OWN
    assert parts.client.exists(parts.keys.block(BLOCKS[1])) == 1


def test_a_tenant_that_nobody_knows_pins_nothing_and_is_charged_nothing(api: TestClient, parts: Parts) -> None:
    """Who touches a value that others pay for pays its part from then on."""
    parts.tenants.create(TenantPolicy(tenant="acme"))
    store(parts, BLOCKS[0])
    before = parts.ledger.usage()
    pins = PINS.replace("acme", "acmee")
    assert error_of(api.put(pins, json=body(BLOCKS[0], lease_s=60)))[:2] == (404, "tenant")
    assert error_of(api.post(f"{pins}/release", json=body(BLOCKS[0])))[:2] == (404, "tenant")
    assert parts.ledger.usage() == before


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"hashes": [], "lease_s": 1}, "hashes"),
        ({"hashes": ["00"], "lease_s": 1}, "hashes"),
        (body(BLOCKS[0], lease_s=0), "lease_s"),
        (body(BLOCKS[0], lease_s=1e9), "lease_s"),
        (body(BLOCKS[0]), "lease_s"),
        (body(BLOCKS[0], lease_s=1, forever=True), "forever"),
    ],
)
def test_a_pin_that_cannot_be_understood_names_its_field(api: TestClient, wrong: object, field: str) -> None:
    status, named, _ = error_of(api.put(PINS, json=wrong))
    assert (status, named.split(".")[0]) == (422, field)
