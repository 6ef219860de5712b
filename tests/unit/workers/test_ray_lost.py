"""What is said of an actor that is gone."""

import pytest

from paceline.errors import EngineError

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from paceline.workers.ray import reason_of

TRACEBACK = """ray::SamplerActor.__init__() (pid=5, ip=192.0.2.2)
  File "somewhere.py", line 9, in __init__
paceline.errors.EngineError: vLLM failed when it was probed"""


def test_of_one_that_could_not_be_made_it_is_what_it_raised():
    raised = RayTaskError("SamplerActor.__init__", TRACEBACK, EngineError("vLLM failed when it was probed"))
    assert reason_of(ActorDiedError(raised)) == "paceline.errors.EngineError: vLLM failed when it was probed"


def test_of_any_other_it_is_rays_first_line():
    assert reason_of(RayActorError(error_msg="The actor died unexpectedly.\n\tclass_name: X")) == (
        "The actor died unexpectedly."
    )
