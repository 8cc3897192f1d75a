"""What a model is given at each forward, told to the cache before the model runs.

A cache must know which tokens it holds, since their hashes are made of nothing else, and ``update`` does not say. So
a hook on the model reads its arguments. Owns that hook and what makes arguments unusable; does nothing for any other
cache. Knows no blocks.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

CACHE_ARGUMENTS: Final = ("cache", "past_key_values")
"""Its name in ``forward``, today's first."""

_HARMLESS: Final = frozenset(
    {"input_ids", "attention_mask", "position_ids", "cache_position", "use_cache", "return_dict", "labels"}
    | {"logits_to_keep", "num_logits_to_keep", "output_attentions", "output_hidden_states", "output_router_logits"}
    | set(CACHE_ARGUMENTS)
)
"""Arguments besides which a token's keys and values depend on nothing but the tokens."""

_hooked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Given:
    """One forward's arguments.

    Shapes: ids is (n_rows, n_columns), None when embeddings were given instead; mask is (n_rows, all columns) or
            None; positions is (n_rows or 1, n_columns) or None.
    others: names of arguments that keys and values depend on, too.
    """

    n_rows: int
    n_columns: int
    ids: torch.Tensor | None
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Given:
        """Errors: ValueError for a mask or positions that are not one number a column."""
        ids, embeddings = arguments.get("input_ids"), arguments.get("inputs_embeds")
        shaped = embeddings if ids is None else ids
        if shaped is None:
            raise ValueError("input_ids: a forward with a cache needs them")
        mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 2):
            raise ValueError("attention_mask: one number a column is needed, of shape (rows, columns)")
        if positions is not None and positions.dim() != 2:
            raise ValueError("position_ids: one number a column is needed, of shape (rows, columns)")
        others = tuple(name for name, value in arguments.items() if name not in _HARMLESS and _says(value))
        n_rows, n_columns = shaped.shape[:2]
        return cls(n_rows, n_columns, ids, mask, positions, others)

    def starts_at(self, columns: int) -> int:
        """The column that it begins with, for a cache of ``columns``; as its mask says, else its positions."""
        if self.mask is not None:
            return self.mask.shape[1] - self.n_columns
        if self.positions is not None:
            return int(self.positions[0, 0])
        return columns

    def without_first(self, n_columns: int) -> Given:
        return Given(
            self.n_rows,
            self.n_columns - n_columns,
            None if self.ids is None else self.ids[:, n_columns:],
            self.mask,
            None if self.positions is None else self.positions[:, -self.n_columns :][:, n_columns:],
            self.others,
        )

    def paddings(self) -> list[int]:
        """Columns of padding that each row begins with. Errors: ValueError for padding anywhere else."""
        return [0] * self.n_rows if self.mask is None else left_paddings(self.mask)

    def check(self, *, first_column: int, paddings: Sequence[int]) -> None:
        """Errors: ValueError unless its mask hides the padding and nothing else, and its positions count tokens."""
        given = self.paddings()
        if given != [min(padding, first_column + self.n_columns) for padding in paddings]:
            raise ValueError(
                f"attention_mask: rows with {given} columns of padding, in a cache whose rows have {list(paddings)}; "
                "give tiered_cache the same mask as the model"
            )
        if self.positions is None:
            if any(paddings):
                raise ValueError("position_ids: with padding on the left the model needs them; generate makes them")
            return
        device = self.positions.device
        columns = torch.arange(first_column, first_column + self.n_columns, device=device)
        expected = columns - torch.tensor(paddings, device=device)[:, None]
        found = self.positions[:, -self.n_columns :]
        if bool(((found != expected) & (expected >= 0)).any()):
            raise ValueError("position_ids: they must count each row's tokens from 0 on, as what is cached did")


def left_paddings(mask: torch.Tensor) -> list[int]:
    """Zeros that each row of a (rows, columns) mask begins with.

    Errors: ValueError for a zero after a one, that is, padding on the right or holes.
    """
    kept = mask.bool()
    paddings = (~kept).sum(1)
    columns = torch.arange(mask.shape[1], device=mask.device)
    if bool((kept != (columns >= paddings[:, None])).any()):
        raise ValueError(
            "attention_mask: padding may only stand on the left; set the tokenizer's padding_side to left"
        )
    found: list[int] = paddings.tolist()
    return found


class Listener(Protocol):
    """A cache that wants to know."""

    def given(self, given: Given) -> int:
        """Called before the model runs; how many of its first columns to leave out, because they are cached."""


def listen(model: torch.nn.Module, kind: type[Listener]) -> None:
    """From now on, tell caches of this kind what ``model`` is given. Once a model; nothing changes for others."""
    if model in _hooked:
        return
    names = list(inspect.signature(model.forward).parameters)

    def before(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        arguments = dict(zip(names, args, strict=False)) | kwargs
        cache = next((arguments[name] for name in CACHE_ARGUMENTS if arguments.get(name) is not None), None)
        if not isinstance(cache, kind):
            return None
        given = Given.of(arguments)
        left_out = cache.given(given)
        if not left_out:
            return None
        fewer = given.without_first(left_out)
        return (), arguments | {"input_ids": fewer.ids, "position_ids": fewer.positions}

    model.register_forward_pre_hook(before, with_kwargs=True)
    _hooked.add(model)


def _says(value: object) -> bool:
    """None and switches that are off say nothing."""
    return value is not None and value is not False
