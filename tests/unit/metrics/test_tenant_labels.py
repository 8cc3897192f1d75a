"""Which tenants have a label of their own."""

from __future__ import annotations

import random
import threading

from tiered.metrics.tenant_labels import OTHER, TenantLabels


def test_a_label_once_given_is_kept_and_who_found_none_never_gets_one() -> None:
    labels = TenantLabels(2)
    assert labels.of({"a": 1, "b": 5, "c": 3}) == {"a": OTHER, "b": "b", "c": "c"}
    assert labels.of({"a": 99, "c": 0, "d": 50}) == {"a": OTHER, "c": "c", "d": OTHER}
    assert labels.of({"b": 0}) == {"b": "b"}


def test_places_are_given_as_tenants_come_while_there_are_any() -> None:
    labels = TenantLabels(3)
    assert labels.of({"z": 0}) == {"z": "z"}
    assert labels.of({"z": 0, "a": 1, "b": 9, "c": 5}) == {"z": "z", "a": OTHER, "b": "b", "c": "c"}


def test_a_tenant_called_other_takes_no_place_and_counts_with_the_rest() -> None:
    labels = TenantLabels(1)
    assert labels.of({OTHER: 100, "a": 1, "b": 0}) == {OTHER: OTHER, "a": "a", "b": OTHER}


def test_scrapes_side_by_side_give_out_no_more_places_than_there_are() -> None:
    labels = TenantLabels(10)
    start = threading.Barrier(8)
    given: list[dict[str, str]] = []

    def scrape(seed: int) -> None:
        order = random.Random(seed)
        start.wait(10)
        for _ in range(50):
            given.append(labels.of({f"t{order.randrange(200)}": order.random() for _ in range(5)}))

    threads = [threading.Thread(target=scrape, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    everyone: dict[str, set[str]] = {}
    for labelled in given:
        for tenant, label in labelled.items():
            everyone.setdefault(tenant, set()).add(label)
    own = [tenant for tenant, seen in everyone.items() if seen == {tenant}]
    assert len(own) == 10
    assert all(seen == {OTHER} for tenant, seen in everyone.items() if tenant not in own)
