"""Files for containers, Slurm and Kubernetes: their syntax, and every `paceline` command and option in them."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from paceline.cli import train
from paceline.cli.arguments import parse
from paceline.cli.main import COMMANDS
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from tests.support.deployment_fields import KINDS, METADATA, faults

ROOT = Path(__file__).parents[3]
SLURM = sorted((ROOT / "examples" / "slurm").glob("*.sbatch"))
KUBERNETES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
CONTAINERFILE = (ROOT / "Containerfile").read_text()

SBATCH = {
    *("account", "array", "begin", "chdir", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "deadline"),
    *(
        "dependency",
        "distribution",
        "error",
        "exclude",
        "exclusive",
        "export",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
    ),
    *("gres", "hint", "hold", "input", "job-name", "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu"),
    *("mem-per-gpu", "nice", "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node"),
    *("open-mode", "output", "partition", "priority", "qos", "requeue", "reservation", "signal", "time", "time-min"),
}
"""Long options of Slurm's sbatch that a job of this kind may want, from its manual."""
INSTRUCTIONS = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL"),
    *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
SECONDS_BEFORE_THE_KILL = 30
"""That saving and ending may take beyond the grace."""


def name_of(path: Path) -> str:
    return path.name


def commands(text: str) -> list[list[str]]:
    """The words behind `paceline` of each command in a script, its variables as they stand."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    found = [match[1] for line in lines if (match := re.search(r"(?:^|[ ;])paceline ([a-z]+ .*)$", line))]
    return [shlex.split(one) for one in found]


def accepted(words: list[str]) -> dict[str, object]:
    """The options of a command that the command line takes, each with a value that it may have."""
    assert words[0] in COMMANDS
    given = parse(train.COMMAND, words[1:])
    if given.options:
        build_config({"model": "embedded", "dataset": "arithmetic", **given.options})
    return given.options


def documents(path: Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(path: Path, kind: str) -> list[dict]:
    return [one for one in documents(path) if one["kind"] == kind]


@pytest.mark.parametrize("path", SLURM, ids=name_of)
def test_a_batch_script_is_one_that_bash_reads(path):
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("path", SLURM, ids=name_of)
def test_a_batch_scripts_options_are_sbatchs_own_and_stand_before_the_first_command(path):
    lines = path.read_text().splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [(number, line.split(None, 1)[1]) for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert len(options) >= 8
    for number, option in options:
        assert number < first_command  # sbatch reads no further
        assert re.fullmatch(r"--[a-z-]+(=\S+)?", option)
        assert option.removeprefix("--").partition("=")[0] in SBATCH


@pytest.mark.parametrize("path", SLURM, ids=name_of)
def test_a_batch_script_begins_a_run_or_goes_on_with_it_and_leaves_time_to_save(path):
    text = path.read_text()
    fresh, gone_on = sorted(commands(text), key=lambda words: "--resume" in words)
    assert gone_on == ["train", "--resume", "$RUN"]
    before_the_kill = int(re.search(r"--signal=TERM@(\d+)", text)[1])
    grace = float(str(accepted(fresh)["stop_grace"]))
    assert before_the_kill - grace >= SECONDS_BEFORE_THE_KILL
    file = fresh[fresh.index("--config") + 1]
    assert build_config(parse_yaml((ROOT / file).read_text(), file)).data.dataset == "openai/gsm8k:main"


@pytest.mark.parametrize("path", KUBERNETES, ids=name_of)
def test_an_object_has_the_fields_that_its_kind_has_and_no_other(path):
    for one in documents(path):
        fields = {"apiVersion!": str, "kind!": str, "metadata!": METADATA, **KINDS[one["apiVersion"], one["kind"]]}
        assert faults(one, fields) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"backofLimit": 3}, [".spec.backofLimit: no such field"]),
        ({"backoffLimit": "3"}, [".spec.backoffLimit: '3' is not of <class 'int'>"]),
        ({"template": {}}, [".spec.template.spec: missing"]),
    ],
)
def test_a_misspelt_a_mistyped_and_a_missing_field_are_found(change, fault):
    (job,) = of_kind(ROOT / "examples" / "kubernetes" / "job.yaml", "Job")
    wrong = {"spec": {**job["spec"], **change}}
    assert faults(wrong, KINDS["batch/v1", "Job"]) == fault


@pytest.mark.parametrize("path", KUBERNETES, ids=name_of)
def test_what_an_object_refers_to_is_in_its_file(path):
    known = {(one["kind"], one["metadata"]["name"]) for one in documents(path)}
    text = yaml.safe_dump_all(documents(path), default_flow_style=False)
    assert {("PersistentVolumeClaim", name) for name in re.findall(r"claimName: (\S+)", text)} <= known
    assert {("ConfigMap", name) for name in re.findall(r"configMap:\n\s+name: (\S+)", text)} <= known
    for mounts, volumes in ((pod["containers"], pod["volumes"]) for pod in pods(path)):
        named = {mount["name"] for container in mounts for mount in container["volumeMounts"]}
        assert named == {volume["name"] for volume in volumes}


def pods(path: Path) -> list[dict]:
    jobs = [one["spec"]["template"]["spec"] for one in of_kind(path, "Job")]
    clusters = [one["spec"]["rayClusterSpec"] for one in of_kind(path, "RayJob")]
    groups = [group for one in clusters for group in (one["headGroupSpec"], *one["workerGroupSpecs"])]
    return jobs + [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize("path", KUBERNETES, ids=name_of)
def test_the_options_and_commands_in_an_object_are_taken(path):
    (map_,) = of_kind(path, "ConfigMap")
    build_config(parse_yaml(map_["data"]["run.yaml"], str(path)))
    gone_on, fresh = commands(map_["data"]["begin.sh"])
    assert gone_on == ["train", "--resume", "$RUN"]
    assert accepted(fresh) == {"output_dir": "$RUN"}
    subprocess.run(["sh", "-n"], input=map_["data"]["begin.sh"], text=True, check=True)


def test_a_pod_is_killed_later_than_its_run_gives_up_and_wrong_usage_is_not_tried_again():
    path = ROOT / "examples" / "kubernetes" / "job.yaml"
    (job,), (map_,) = of_kind(path, "Job"), of_kind(path, "ConfigMap")
    grace = build_config(parse_yaml(map_["data"]["run.yaml"], "run.yaml")).loop.stop_grace
    pod = job["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] - grace >= SECONDS_BEFORE_THE_KILL
    assert pod["restartPolicy"] == "Never"  # which a policy on failures needs
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2]


def test_the_ray_cluster_has_a_gpu_for_each_process_and_the_version_of_ray_that_is_installed():
    path = ROOT / "examples" / "kubernetes" / "rayjob.yaml"
    (job,), (map_,) = of_kind(path, "RayJob"), of_kind(path, "ConfigMap")
    config = build_config(parse_yaml(map_["data"]["run.yaml"], "run.yaml"))
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    gpus = workers["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert workers["replicas"] * gpus == config.cluster.num_producers + config.cluster.num_consumers
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text().split()


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def test_the_container_file_has_known_instructions_in_an_order_that_builds():
    found = instructions()
    names = [name for name, _ in found]
    assert set(names) <= INSTRUCTIONS
    assert set(names[: names.index("FROM")]) <= {"ARG"}
    for name, rest in found:
        if name in ("CMD", "ENTRYPOINT"):
            json.loads(rest)  # as words: a shell in between would keep signals to itself
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert dict(found)["USER"] == "1000"  # as the objects of Kubernetes have it


def test_every_argument_of_the_container_file_is_declared_and_used():
    found = instructions()
    declared = {rest.partition("=")[0] for name, rest in found if name == "ARG"}
    used = {name for _, rest in found for name in re.findall(r"\$\{(\w+)\}", rest)}
    assert used == declared


def test_what_the_container_file_copies_is_there_and_let_through():
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    for name, rest in instructions():
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert source in let_through


def test_the_container_installs_extras_that_there_are_and_the_torch_of_the_tests():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    arguments = dict(rest.partition("=")[::2] for name, rest in instructions() if name == "ARG")
    assert set(arguments["EXTRAS"].split(",")) <= extras.keys()
    assert arguments["TORCH"] in (ROOT / "constraints.txt").read_text().split()
