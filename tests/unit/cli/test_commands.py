"""The commands' own arithmetic and words: bounds, rows, checks, exit codes. No coordinator needed."""

from __future__ import annotations

import inspect
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import typer

from tiered.cli import doctor, tenants
from tiered.cli.api import CoordinatorClient
from tiered.cli.bodies import Seconds, Stats
from tiered.cli.bounds import BOUNDS, Codec, OverQuota, policy_changes
from tiered.cli.main import app, main
from tiered.cli.stats import token_rows
from tiered.cli.status import status_lines
from tiered.cli.tenants import second_lines
from tiered.codec.codecs import CODEC_NAMES
from tiered.errors import ConfigError
from tiered.pool.named import Leftover

STATS = msgspec.convert(
    {
        "tokens": {"asked": 1000, "hot": 500, "peer": 100, "redis": 150, "missed": 250},
        "by_tenant": {
            "b": {"asked": 400, "hot": 100, "peer": 100, "redis": 0, "missed": 200},
            "a": {"asked": 600, "hot": 400, "peer": 0, "redis": 150, "missed": 50},
        },
        "tiers": {
            "hot": {"bytes": 3 << 29, "blocks": 1500, "capacity_bytes": 3 << 30},
            "redis": {"bytes": 0, "pending_bytes": 0, "blocks": 0},
        },
        "nodes": {"alive": 2, "known": 3},
        "stale": False,
    },
    Stats,
)


def test_a_change_holds_only_what_was_given_and_none_lifts_a_limit() -> None:
    changes = policy_changes({"redis_reserved": "0", "redis_limit": "none", "weight": None})
    assert changes == {"redis_reserved_bytes": 0, "redis_limit_bytes": None}


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1GiB", {"hot_limit_bytes": 1 << 30, "hot_limit_blocks": None}),
        ("4096blocks", {"hot_limit_bytes": None, "hot_limit_blocks": 4096}),
        ("7 Blocks", {"hot_limit_bytes": None, "hot_limit_blocks": 7}),
        ("none", {"hot_limit_bytes": None, "hot_limit_blocks": None}),
    ],
)
def test_a_hot_bound_in_one_unit_takes_the_place_of_the_other(text: str, limit: dict[str, object]) -> None:
    assert policy_changes({"hot_limit": text}) == limit


def test_a_hot_reservation_may_be_given_in_blocks() -> None:
    changes = policy_changes({"hot_reserved": "12blocks"})
    assert changes == {"hot_reserved_bytes": 0, "hot_reserved_blocks": 12}


def test_weight_and_over_quota_go_as_they_are() -> None:
    changes = policy_changes(
        {
            "weight": 2.5,
            "over_quota": OverQuota.REFUSE,
            "sharing": "group:lab",
            "redis_codec": Codec.LOSSLESS,
            "copies": 2,
        }
    )
    assert changes == {
        "weight": 2.5,
        "over_quota": "refuse",
        "sharing": "group:lab",
        "redis_codec": "lossless",
        "copies": 2,
    }


@pytest.mark.parametrize(("verb", "method"), [("create", "POST"), ("set", "PATCH")])
def test_every_bound_is_an_option_of_both_commands_and_reaches_the_coordinator(
    verb: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, object]] = []

    def answering(request: httpx.Request) -> httpx.Response:
        sent.append((request.method, json.loads(request.content)))
        return httpx.Response(422, json={"error": {"field": "", "message": "seen"}})

    transport = httpx.MockTransport(answering)
    monkeypatch.setattr(tenants, "connect", lambda _: CoordinatorClient("http://127.0.0.1:9", transport=transport))
    given = {
        "hot_reserved": "1KiB",
        "hot_limit": "2KiB",
        "hot_total_reserved": "3KiB",
        "hot_total_limit": "4KiB",
        "redis_reserved": "5KiB",
        "redis_limit": "6KiB",
        "redis_ttl": "7",
        "weight": "8",
        "over_quota": "refuse",
        "sharing": "public",
        "redis_codec": "lossless",
        "copies": "2",
    }
    assert set(given) == set(BOUNDS)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    assert main(["tenants", verb, "acme", *flags]) == 2
    [(how, body)] = sent
    assert how == method
    named = {"tenant": "acme"} if verb == "create" else {}
    assert body == named | policy_changes({**given, "weight": 8.0, "copies": 2})


def test_setting_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tenants", "set", "acme"]) == 2
    assert "nothing to change" in capsys.readouterr().err


def test_what_of_redis_are_second_copies_is_shown_where_a_tenant_asks_for_them() -> None:
    assert second_lines(None) == []
    assert second_lines(Seconds(2_000, 3 << 20, 7, 0)) == [
        ("second copies", "3 MiB of redis, 2,000 blocks; 7 blocks in redis alone")
    ]
    [(_, line)] = second_lines(Seconds(0, 0, 0, 4))
    assert line.endswith("0 blocks in redis alone, 4 in one node alone")


def test_every_codec_can_be_chosen_and_no_other() -> None:
    assert {codec.value for codec in Codec} == set(CODEC_NAMES)


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("hot_limit", "many", "--hot-limit: 'many' is not a size"),
        ("redis_limit", "5 parsecs", "--redis-limit"),
        ("hot_reserved", "none", "--hot-reserved: a reservation is a number"),
        ("hot_limit", "-5blocks", "--hot-limit: '-5blocks' is not a number of blocks"),
        ("hot_reserved", "blocks", "--hot-reserved: 'blocks' is not a number of blocks"),
        ("redis_limit", "5blocks", "--redis-limit: '5blocks' is not a size"),
        ("redis_ttl", "soon", "--redis-ttl: 'soon' is not a number of seconds above 0"),
        ("redis_ttl", "0", "--redis-ttl: '0' is not a number of seconds"),
        ("redis_reserved", "-1", "--redis-reserved: '-1' is below zero"),
    ],
)
def test_a_bad_size_names_its_flag(field: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        policy_changes({field: text})


def test_the_rows_of_tokens_add_up_across_and_down() -> None:
    rows = token_rows(STATS)
    assert [row[0] for row in rows] == ["a", "b", "all"]
    numbers = [[int(cell.replace(",", "")) for cell in row[1:6]] for row in rows]
    for asked, *found in numbers:
        assert asked == sum(found)
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
    assert rows[-1][-1] == "75.0%"


def test_the_status_is_one_screen_in_words_and_units() -> None:
    lines = dict(status_lines(STATS))
    assert lines["nodes"] == "2 of 3 alive"
    assert lines["hot tier"] == "1.5 GiB of 3 GiB (50.0%), 1,500 blocks"
    assert lines["  peer"] == "100 (10.0%)"
    assert "warning" not in lines


def test_stale_numbers_are_called_stale() -> None:
    lines = dict(status_lines(msgspec.structs.replace(STATS, stale=True)))
    assert "cannot read Redis" in lines["warning"]


def test_the_doctor_fails_only_for_what_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*, ok: bool, required: bool) -> doctor.Check:
        return doctor.Check("thing", ok, required, "detail", "" if ok else "get it")

    monkeypatch.setattr(doctor, "run_checks", lambda option: [check(ok=False, required=False)])
    assert main(["doctor"]) == 0
    assert "optional  detail; get it" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "run_checks", lambda option: [check(ok=False, required=True)])
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_doctor_says_how_to_get_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    checks = {check.name: check for check in doctor.run_checks(f"http://127.0.0.1:{port}")}
    assert checks["torch"].fix == "pip install 'tiered-kv[worker]'"
    assert checks["fastapi"].fix == "pip install 'tiered-kv[server]'"
    assert "pip install 'tiered-kv[server]'" in checks["redis server"].fix
    assert "tiered up" in checks["coordinator"].fix
    assert not doctor.healthy(list(checks.values()))


def test_version_and_help_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tiered ")
    assert main([]) == 0
    assert "status" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["nonsense"], ["status", "--colour"], ["tenants", "show"], ["up", "--port", "x"]])
def test_a_wrong_word_is_one_line_and_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tiered: ")
    assert captured.err.count("\n") == 1


def float_options(group: typer.Typer, *path: str) -> Iterator[tuple[str, ...]]:
    """Of a group's commands: the words that lead there, and the option."""
    for command in group.registered_commands:
        assert command.callback is not None
        assert command.name is not None
        for name, parameter in inspect.signature(command.callback, eval_str=True).parameters.items():
            if re.search(r"\bfloat\b", str(parameter.annotation)):
                yield (*path, command.name, f"--{name.replace('_', '-')}")
    for each in group.registered_groups:
        assert each.typer_instance is not None
        yield from float_options(each.typer_instance, *path, str(each.name))


FLOAT_OPTIONS = sorted(float_options(app))


def test_the_commands_options_that_take_a_float_are_found() -> None:
    known = {("tenants", "set", "--weight"), ("tokens", "create", "--expires-s"), ("pin", "--lease-s")}
    assert {*known, ("drain", "--timeout"), ("top", "--every"), ("stats", "--every")} <= set(FLOAT_OPTIONS)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("words", FLOAT_OPTIONS, ids=" ".join)
def test_a_number_that_is_none_is_one_line_and_exit_code_2(
    words: tuple[str, ...], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *path, option = words
    assert main([*path, f"{option}={number}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tiered: Invalid value for '{option}'")
    assert said.count("\n") == 1


@pytest.mark.parametrize("flag", ["--tokens", "--hashes"])
def test_a_prompt_that_is_nested_without_end_is_one_line(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000 + "]" * 100_000)
    assert main(["route", "--tenant", "acme", flag, str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tiered: {flag}: {file} is not a JSON list of numbers or texts")
    assert said.count("\n") == 1


def test_a_wrong_value_is_said_in_our_words_with_the_help_that_knows_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tenants", "set", "acme", "--redis-codec", "zip"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tiered: Invalid value for '--redis-codec': 'zip' is not one of 'none', 'lossless', ")
    assert said.endswith("(see tiered tenants set --help)\n")


def test_the_doctor_names_memory_that_nobody_uses_and_the_command_that_frees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [Leftover(Path(f"/dev/shm/tiered-pool-0-w{n}-0123456789ab-0123456789abcdef"), 3 << 30) for n in (1, 2)]
    monkeypatch.setattr(doctor, "leftovers", lambda: iter(left))
    found = doctor._left_pools()
    assert (found.ok, found.required) == (False, False)
    assert found.detail == "6 GiB in 2 that no process uses"
    assert found.fix.endswith(f"rm {left[0].path} {left[1].path}")
    monkeypatch.setattr(doctor, "leftovers", lambda: iter(()))
    assert doctor._left_pools().ok
