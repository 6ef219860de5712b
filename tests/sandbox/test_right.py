"""A right program in an unusual style is still right inside the sandbox."""

import pytest

from tests.sandbox.right import PROGRAMS
from tests.sandbox.verdicts import complaint


@pytest.mark.parametrize("program", [pytest.param(program, id=program.name) for program in PROGRAMS])
def test_a_right_program_in_an_odd_style_is_right(program, sandbox):
    assert complaint(sandbox, program) == ""
