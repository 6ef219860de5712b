"""The first commands of a new user, with relative names."""

from tests.outside.desk import Desk


def test_a_run_with_a_relative_output_dir_is_read_from_another_directory(desk: Desk):
    small = ("--max-steps", 1, "--eval-size", 4, "--prompts-per-step", 2, "--num-generations", 2)

    trained = desk.paceline("train", *small, "--output-dir", "runs/mine")
    (desk.path / "elsewhere").mkdir()
    reported = desk.paceline("report", "../runs/mine", cwd="elsewhere")

    assert trained.returncode == 0, trained.stderr
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout == "../runs/mine/report.html\n"
    assert "mine" in (desk.path / "runs/mine/report.html").read_text(encoding="utf-8")
