"""The first screen as lines of text for a given width: tokens, bytes, nodes, alerts.

Colour only repeats what a word or a sign says already.
"""

from __future__ import annotations

from typing import Final

from rich.text import Text

from tiered.cli.output import human_bytes, human_count
from tiered.cli.top.picture import Picture
from tiered.cli.top.words import bar, cut, duration, per_second, share, short

_TOKENS: Final = (("hot", "green"), ("peer", "cyan"), ("redis", "blue"), ("missed", "yellow"))

_BAR_MIN, _BAR_MAX = 8, 60

_UNKNOWN: Final = ("! ", "yellow")
_SIGNS: Final = {"alarm": ("!!", "bold red"), "warning": ("! ", "yellow"), "note": ("- ", "")}
"""By the level's name; one that is not known here is shown all the same."""


def overview(picture: Picture, width: int) -> Text:
    """No line is wider than width, unless that is under 60."""
    width = max(width, 60)
    sections = [_token_lines(picture, width), _byte_lines(picture, width), _state_lines(picture, width)]
    sections.append(_alert_lines(picture, width))
    return Text("\n\n").join(Text("\n").join(lines) for lines in sections)


def _alert_lines(picture: Picture, width: int) -> list[Text]:
    """As the coordinator words them. Each begins with a sign; a long one goes on below it."""
    alerts, failure = picture.sample.alerts, picture.sample.alerts_failure
    if failure:
        return [_title("alerts", "not known"), *_signed(_UNKNOWN, failure, width)]
    lines = [_title("alerts", f"{len(alerts)}" if alerts else "none")]
    for alert in alerts:
        age = "" if alert.age_s is None else f" ({duration(alert.age_s + picture.since_asked_s)} ago)"
        lines += _signed(_SIGNS.get(alert.level, _UNKNOWN), f"{alert.text}{age}", width)
    return lines


def _signed(sign_and_style: tuple[str, str], text: str, width: int) -> list[Text]:
    sign, style = sign_and_style
    return [Text(f"{sign if first else '  '} {part}", style=style) for first, part in _wrapped(text, width - 3)]


def _token_lines(picture: Picture, width: int) -> list[Text]:
    now, ever, flow = picture.flow.tokens, picture.sample.stats.tokens, picture.flow
    bar_width = min(_BAR_MAX, max(_BAR_MIN, (width - 58) // 2))
    last = f"last {flow.seconds:.1f} s" if flow.seconds else "last interval"
    first_width = 9 + 1 + 7 + 1 + bar_width
    lines = [Text.assemble((f"{'tokens':<8}", "bold"), f"{last:>{first_width}}   {'since start':>16}")]
    lines.append(
        Text(
            f"{'asked':<8}{per_second(flow.per_s(now.asked)):>9}{'':{bar_width + 9}}   {human_count(ever.asked):>16}"
        )
    )
    for name, colour in _TOKENS:
        n_now: int = getattr(now, name)
        n_ever: int = getattr(ever, name)
        lines.append(
            Text.assemble(
                f"{name:<8}{per_second(flow.per_s(n_now)):>9} {share(n_now, now.asked):>7} ",
                (bar(n_now, now.asked, bar_width), colour),
                f"   {human_count(n_ever):>16} {share(n_ever, ever.asked):>7} ",
                (bar(n_ever, ever.asked, bar_width), colour),
            )
        )
    measured = any(node.rates.prefill_tokens_per_s > 0 for node in picture.sample.nodes)
    of = "of workers here now" if measured else "speed not measured"
    last_s, ever_s = duration(flow.saved_s), duration(picture.sample.stats.saved_prefill_s)
    lines.append(Text(f"{'saved':<8}{last_s:>17} {cut('prefill', bar_width):<{bar_width}}   {ever_s:>16} {of}"))
    return lines


def _byte_lines(picture: Picture, width: int) -> list[Text]:
    tiers = picture.sample.stats.tiers
    bar_width = min(_BAR_MAX, max(_BAR_MIN, width - 56))
    lines = [_title("bytes")]
    for name, colour, used, capacity, more in (
        ("hot", "green", tiers.hot.bytes, tiers.hot.capacity_bytes, f"{short(tiers.hot.blocks)} blocks"),
        ("redis", "blue", tiers.redis.bytes, tiers.redis.capacity_bytes, f"{short(tiers.redis.blocks)} blocks"),
    ):
        of = "no capacity set" if capacity is None else f"of {human_bytes(capacity)}"
        filled = " " * bar_width if capacity is None else bar(used, capacity, bar_width)
        part = "" if capacity is None else share(used, capacity)
        lines.append(
            Text.assemble(f"{name:<8}{human_bytes(used):>10} {of:<15} {part:>6} ", (filled, colour), f" {more}")
        )
    if tiers.redis.pending_bytes:
        lines.append(Text(f"{'':<8}{human_bytes(tiers.redis.pending_bytes):>10} on the way to redis"))
    return lines


def _state_lines(picture: Picture, width: int) -> list[Text]:
    stats, nodes = picture.sample.stats, picture.sample.nodes
    alive = [node for node in nodes if node.alive]
    lost = len(nodes) - len(alive)
    engines = sum(node.engines for node in alive)
    counted = f"{len(alive)} alive, {lost} lost, {human_count(engines)} engines attached"
    leader = stats.leader or "nobody, as far as this token may see"
    here = " (the one asked)" if stats.is_leader else ""
    return [
        Text.assemble((f"{'nodes':<8}", "bold"), (counted, "red" if lost else "")),
        Text.assemble((f"{'leader':<8}", "bold"), cut(leader + here, width - 8)),
        Text.assemble((f"{'tenants':<8}", "bold"), human_count(len(picture.sample.tenants))),
    ]


def _title(name: str, rest: str = "") -> Text:
    return Text.assemble((f"{name:<8}", "bold"), rest)


def _wrapped(text: str, width: int) -> list[tuple[bool, str]]:
    """In lines at blanks; True for the first."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return [(index == 0, line) for index, line in enumerate(lines)]
