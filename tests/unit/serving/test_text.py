"""Text is shown in whole characters, and never what might be the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tiered.serving.text import Characters, StopStrings


def lossy(tokens: Sequence[int]) -> str:
    """As byte-level decoders do: one mark for each piece that is no character."""
    return bytes(tokens).decode("utf-8", "replace")


def byte_fallback(tokens: Sequence[int]) -> str:
    """As SentencePiece's decoders do: a run of bytes is text, or one mark for each byte. A first space is lost."""
    text, run = "", b""
    for token in [*tokens, -1]:
        if token >= 128:
            run += bytes([token])
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = b""
        text += chr(token) if token >= 0 else ""
    return text.removeprefix(" ")


def pieces_of(characters: Characters, tokens: Sequence[int]) -> list[str]:
    return [*(characters.add(token) for token in tokens), characters.end()]


def ends_whole(answer: str) -> bool:
    """At its end the mark looks like half a character, which is not shown."""
    return not answer.endswith("\ufffd")


@given(st.text(max_size=40).filter(ends_whole), st.text(max_size=12))
@example("a\u20ac\U0001f600", "")
@example("\U0001f600\U0001f601", "\u20ac")
@pytest.mark.parametrize("decode", [lossy, byte_fallback])
def test_an_answers_pieces_are_its_text_and_no_piece_has_half_a_character(
    decode: object, answer: str, prompt: str
) -> None:
    pieces = pieces_of(Characters(decode, [*prompt.encode()]), [*answer.encode()])  # type: ignore[arg-type]
    if decode is lossy or prompt:
        assert "".join(pieces) == answer
    else:  # nothing stands before the space that this decoder drops
        assert "".join(pieces) == answer.removeprefix(" ")
    if "\ufffd" not in answer:
        assert "\ufffd" not in "".join(pieces)


@given(st.lists(st.integers(0, 255), max_size=200))
@example([0x80] * 200)
@example([0x80, 0x80, 0x80, 0xE2, 0x82, 0xAC, 0x41])
@example([0xE2] * 70 + [0x41])
def test_bytes_that_are_no_text_are_marked_as_a_decoder_marks_them(tokens: list[int]) -> None:
    shown = "".join(pieces_of(Characters(lossy, b"prompt"), tokens))
    whole = lossy(tokens)
    assert whole.startswith(shown)
    assert set(whole[len(shown) :]) <= {"\ufffd"}
    assert len(whole) - len(shown) <= 3


def test_a_character_is_shown_with_its_last_byte_and_not_before() -> None:
    characters = Characters(lossy, b"hi")
    assert [characters.add(byte) for byte in "\U0001f600!".encode()] == ["", "", "", "\U0001f600", "!"]
    assert characters.end() == ""


def test_half_a_character_at_the_end_is_left_out() -> None:
    characters = Characters(lossy, b"hi")
    assert pieces_of(characters, [ord("a"), 0xE2, 0x82]) == ["a", "", "", ""]


def test_a_space_at_the_beginning_of_an_answer_is_kept_by_decoders_that_drop_a_texts_first() -> None:
    assert pieces_of(Characters(byte_fallback, [*b"say"]), [*b" hi"])[:3] == [" ", "h", "i"]


def test_a_prompt_that_ends_within_a_character_leaves_the_answers_first_bytes_alone() -> None:
    assert "".join(pieces_of(Characters(lossy, [0xE2, 0x82]), [0xAC, 0x41])) == "\ufffdA"


def shown_by(stops: Sequence[str], texts: Sequence[str]) -> tuple[list[str], bool]:
    watch, shown = StopStrings(stops), []
    for text in texts:
        piece = watch.add(text)
        shown.append(piece.text)
        if piece.stopped:
            return shown, True
    return [*shown, watch.end()], False


@pytest.mark.parametrize(
    ("stops", "texts", "expected"),
    [
        (["END"], ["aE", "N", "Db"], (["a", "", ""], True)),
        (["END"], ["aE", "N", "X"], (["a", "", "ENX", ""], False)),
        (["END"], ["E", "E", "N", "D"], (["", "E", "", ""], True)),
        (["aab"], ["a", "a", "a", "b"], (["", "", "a", ""], True)),
        (["long one", "x"], ["lonx"], (["lon"], True)),
        (["bc", "abcd"], ["ab", "cd"], (["", ""], True)),
        (["\n\n"], ["a\n", "b\n\nc"], (["a", "\nb"], True)),
        ([], ["a", "b"], (["a", "b", ""], False)),
        (["END"], ["EN"], (["", "EN"], False)),
    ],
)
def test_text_is_shown_up_to_the_first_stop_string(
    stops: list[str], texts: list[str], expected: tuple[list[str], bool]
) -> None:
    assert shown_by(stops, texts) == expected


@given(
    st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("ab\n", max_size=4), max_size=20),
)
def test_however_a_text_is_cut_what_is_shown_ends_before_the_first_stop_to_be_whole(
    stops: list[str], texts: list[str]
) -> None:
    shown, stopped = shown_by(stops, texts)
    text = "".join(texts)
    assert text.startswith("".join(shown))
    assert stopped == any(stop in text for stop in stops)
    assert not any(stop in "".join(shown) for stop in stops)
    if stopped:
        rest = text[len("".join(shown)) :]
        assert any(rest.startswith(stop) for stop in stops)
    else:
        assert "".join(shown) == text
