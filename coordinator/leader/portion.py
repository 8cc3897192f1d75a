"""Whole numbers dealt in proportion, with a cap on each part."""

from __future__ import annotations

from collections.abc import Sequence


def portion(total: int, weights: Sequence[int], caps: Sequence[int]) -> list[int]:
    """Parts of total in proportion to the weights, none above its cap; what a cap leaves over goes to the others.

    The parts sum to total, or to less where caps and weights of zero do not let them. Cost: O(n) for each cap met.
    """
    parts = [0] * len(weights)
    left = total
    still = [i for i, weight in enumerate(weights) if weight > 0 and caps[i] > 0]
    while left > 0 and still:
        weight = sum(weights[i] for i in still)
        full = [i for i in still if caps[i] - parts[i] <= left * weights[i] // weight]
        if not full:
            for i in still:
                parts[i] += left * weights[i] // weight
            break
        for i in full:
            left -= caps[i] - parts[i]
            parts[i] = caps[i]
        still = [i for i in still if parts[i] < caps[i]]
    left = total - sum(parts)
    for i in still:  # rounding leaves less than one for each
        more = min(left, caps[i] - parts[i])
        parts[i] += more
        left -= more
    return parts
