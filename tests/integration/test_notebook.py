"""Runs within a notebook: the tutorial from top to bottom, what a cell shows, and a kernel that is interrupted."""

from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient

from tests.support.documents import ROOT

SECONDS = 120
"""Longest wait for one message of a kernel."""
SMALL = """
import paceline

async def variety(completions, **columns):
    return [len(set(text)) / 10 for text in completions]

rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(6)]
options = dict(model="embedded", dataset=rows, eval_dataset=rows[:2], reward_funcs=[variety, "accuracy"], eval_steps=1,
               allow_overlap=True, system_prompt="", prompts_per_step=2, num_generations=4, max_completion_length=8)
"""


def legible(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def texts(outputs: list[Any]) -> list[str]:
    """Text of a cell's outputs; each must be printed, or a run with its curve."""
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    return [output["text"] if output["output_type"] == "stream" else output["data"]["text/html"] for output in outputs]


@pytest.mark.long
def test_the_tutorial_runs_and_finds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where the kernel looks for its sockets, whose names are relative
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    question = nbformat.v4.new_code_cell(
        "import json\n"
        "print(json.dumps([before.accuracy.value, after.accuracy.value, *(one.accuracy for one in found.values())]))"
    )
    notebook.cells.append(question)
    manager = AsyncKernelManager(transport="ipc")  # a port may be taken before the kernel binds it
    NotebookClient(notebook, km=manager, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute(
        cleanup_kc=True
    )
    assert all(legible(text) for cell in notebook.cells if cell.cell_type == "code" for text in texts(cell.outputs))
    assert max(len(cell.outputs) for cell in notebook.cells if cell.cell_type == "code") <= 2
    assert "<polyline" in "".join(text for cell in notebook.cells for text in texts(cell.get("outputs", [])))
    before, after, both, successes, mistakes = map(float, texts(question.outputs)[0].strip("[]\n").split(","))
    assert after > before + 0.1
    assert (both, len(list(tmp_path.glob("runs/*/final")))) == (after, 3)
    assert successes > before + 0.1
    assert mistakes < successes


def test_the_tutorial_is_committed_without_outputs_and_in_the_form_of_version_4():
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.nbformat == 4
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert [cell.execution_count for cell in code] == [None] * len(code)


class Kernel:
    """A notebook's kernel with the messages that its cells send."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self._client = manager, client

    def run(self, code: str) -> Iterator[tuple[str, str]]:
        """Run a cell; yield each kind of output with its text: `stdout`, `stderr`, or the name of an error."""
        request = self._client.execute(code)
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=SECONDS)
            except Empty:
                pytest.fail(f"the kernel is silent after {code}")
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return
            if kind == "stream":
                yield content["name"], content["text"]
            elif kind == "error":
                yield content["ename"], content["evalue"]
            elif kind in ("display_data", "execute_result"):
                yield kind, str(content["data"])

    def lines(self, code: str) -> str:
        """Run a cell that only prints, but for tqdm's warning that there are no widgets."""
        outputs = [one for one in self.run(code) if "TqdmWarning" not in one[1]]
        assert {kind for kind, _ in outputs} <= {"stdout"}, outputs
        return "".join(text for _, text in outputs)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    manager = KernelManager(transport="ipc")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.usefixtures("heeded_signals")
def test_a_cell_that_is_interrupted_says_how_to_resume_and_another_resumes_to_the_end(kernel, tmp_path):
    assert kernel.lines(SMALL) == ""
    # progress is plain lines, and a second run in the same kernel works like the first
    for name in ("first", "second"):
        shown = kernel.lines(f"run = paceline.train(**options, max_steps=2, output_dir='{name}')")
        assert legible(shown)
        assert "held-out accuracy after step 2" in shown
        assert "step    2 of 2" in shown
    assert kernel.lines("print([one.step for one in run.metrics])") == "[1, 2]\n"

    # the stop button, as soon as a step has been shown
    outputs, interrupted = [], False
    for output in kernel.run("paceline.train(**options, max_steps=300, output_dir='long')"):
        outputs.append(output)
        if "after step 1:" in output[1] and not interrupted:
            interrupted = True
            kernel.manager.interrupt_kernel()
    assert outputs[-1] == ("KeyboardInterrupt", "go on with resume='long'")
    (checkpoint,) = (tmp_path / "long" / "checkpoints").glob("step-*")
    done = int(checkpoint.name.removeprefix("step-"))
    assert 1 <= done < 300
    assert not (tmp_path / "long" / "final").exists()

    # a cell resumes to the end
    kernel.lines(
        f"run = paceline.train(resume='long', dataset=rows, eval_dataset=rows[:2], reward_funcs=[variety, 'accuracy'], "
        f"max_steps={done + 8})"
    )
    assert kernel.lines("print(run.metrics[-1].step, run.final_dir.exists())") == f"{done + 8} True\n"
