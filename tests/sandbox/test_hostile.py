"""No hostile program reaches the host, its neighbours or the expected outputs, at any level of isolation, nor changes
the host."""

import pytest

from paceline.rewards.programs.cases import parse_value, same_output, same_value
from tests.sandbox.battle import Battle, fight_all, findings
from tests.sandbox.hostile import FAMILIES

PROGRAMS = [pytest.param(program, id=f"{family}-{program.name}") for family in FAMILIES for program in FAMILIES[family]]
BITING = [program for family in FAMILIES.values() for program in family if program.bites]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_hostile_program_gets_nothing_and_the_next_program_notices_nothing(program, battle):
    assert findings(battle.fights[program.name], battle) == []


def test_after_all_hostile_programs_the_host_is_as_it_was(battle):
    assert battle.host == []


def test_the_comparison_of_rewards_passes_none_of_them(battle):
    passed = []
    for fight in battle.fights.values():
        right = fight.token if fight.program.right == "token" else fight.program.right or battle.secret
        if fight.execution is None or fight.execution.status != "finished":
            continue
        if fight.program.function is None:
            same = same_output(right, fight.execution.output)
        else:
            is_json, wanted = parse_value(right)
            same = same_value(wanted if is_json else right, parse_value(fight.execution.output)[1])
        passed += [fight.program.name] if same else []
    assert passed == []


def test_no_two_programs_share_a_name():
    names = [program.name for family in FAMILIES.values() for program in family]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def unguarded() -> Battle:
    """The programs that do no harm, where nothing holds them back."""
    return fight_all("none", BITING)


@pytest.mark.parametrize("program", [pytest.param(program, id=program.name) for program in BITING])
def test_the_same_program_gets_through_where_there_is_no_isolation(program, unguarded):
    found = " ".join(findings(unguarded.fights[program.name], unguarded))
    assert "ESCAPED" in found or "it knows a secret" in found


def test_the_look_at_the_host_sees_what_they_did_there(unguarded):
    seen = " ".join(unguarded.host)
    for trace in ("tcp: b'tcp got out'", "udp: b'udp got out'", "the bystander was", "the shared directory was"):
        assert trace in seen
