"""Which token comes next: temperature, nucleus, penalties, and a seed that makes it the same again.

Owns the choice from one step's logits; it knows nothing of text or requests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import torch

_COLDEST: Final = 1e-3
"""Below this a temperature is taken as 0: logits divided by it would be all there is of float32."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0: the likeliest token. seed: of 64 bits, signed; None: another answer each time."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Sampler:
    """Of one answer. Penalties count the answer's own tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._chosen: Counter[int] = Counter()
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """Shapes: logits is (vocab,); it is left as it is. Cost: a sort of the vocabulary where top_p is below 1."""
        token = self._choose(self._penalised(logits))
        self._chosen[token] += 1
        return token

    def _choose(self, logits: torch.Tensor) -> int:
        if self._sampling.temperature < _COLDEST:
            return int(logits.argmax())
        # On the CPU, so that a seed means the same on any device.
        odds = torch.softmax(logits.float().cpu() / self._sampling.temperature, dim=-1)
        if self._sampling.top_p < 1:
            ranked, order = odds.sort(descending=True, stable=True)
            before = ranked.cumsum(-1) - ranked  # the likeliest is always kept, whatever top_p
            ranked[before >= self._sampling.top_p] = 0
            return int(order[torch.multinomial(ranked, 1, generator=self._random)])
        return int(torch.multinomial(odds, 1, generator=self._random))

    def _penalised(self, logits: torch.Tensor) -> torch.Tensor:
        presence, frequency = self._sampling.presence_penalty, self._sampling.frequency_penalty
        if not self._chosen or not (presence or frequency):
            return logits
        changed = logits.float().clone()
        tokens = torch.tensor(list(self._chosen), device=logits.device)
        counts = torch.tensor(list(self._chosen.values()), device=logits.device, dtype=torch.float32)
        changed[tokens] -= presence + frequency * counts
        return changed
