"""What the Python door says is Python."""

import pytest

from tests.outside.desk import Desk


@pytest.mark.long
def test_a_run_that_is_there_is_refused_in_words_that_a_program_can_use(desk: Desk):
    desk.write(
        "again.py",
        """\
        import paceline

        for _ in range(2):
            paceline.train(model="embedded", dataset="arithmetic", max_steps=1, prompts_per_step=2, num_generations=2,
                           max_completion_length=8, dataset_size=8, eval_size=4, output_dir="runs/my run")
        """,
    )

    again = desk.python("again.py")

    assert again.returncode == 1
    *_, last = again.stderr.strip().splitlines()
    assert last.endswith(
        "output_dir runs/my run already holds a run; continue it with resume='runs/my run', or give another directory"
    )
