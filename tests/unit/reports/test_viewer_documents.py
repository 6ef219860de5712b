"""The viewer serves every rollout as it is, behind a secret, and hostile texts and paths reach nothing."""

import base64
import io
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from urllib.request import urlopen

import pytest
from PIL import Image

from paceline.checkpoints.existing_runs import ending_of, write_ending
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.data.pictures import PictureStore
from paceline.errors import CheckpointError, ConfigError, TrainingError
from paceline.reports.viewer.documents import Documents
from paceline.reports.viewer.serving import ASSETS, SCRIPTS, PageServer, asset, export, page
from tests.unit.reports.viewed_runs import HOSTILE, hostile_run, loaded, paid, rollout, write_run

SECRET = "Secret-of-this-test"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("browsing") / "run")


@pytest.fixture(scope="module")
def documents(run):
    return Documents(run.path)


@pytest.fixture(scope="module")
def server(documents):
    with PageServer(documents, 0) as server:
        server.secret = SECRET
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def asked(server, path, host="127.0.0.1"):
    """Status, content type and body of a GET as it is, under this Host; None: without one."""
    host = f"{host}:{server.server_port}" if host in ("127.0.0.1", "localhost") else host
    lines = [f"GET {path} HTTP/1.1", "Connection: close", *([] if host is None else [f"Host: {host}"]), "", ""]
    with socket.create_connection(("127.0.0.1", server.server_port), 10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        found = HTTPResponse(connection)
        found.begin()
        return found.status, found.getheader("Content-Type"), found.read()


def test_every_document_that_is_named_is_there_and_is_json(documents):
    names = list(documents.names())
    assert names[:2] == ["index", "previews-0"]
    assert len(names) == 2 + 2 * 4  # two steps, two evaluations
    assert all(loaded(documents.get(name)) for name in names)


def test_hostile_texts_come_through_as_they_are(documents):
    assert documents.get("texts-rollouts-000001")["completions"] == list(HOSTILE)
    assert loaded(documents.get("texts-rollouts-000001"))["completions"] == list(HOSTILE)


@pytest.mark.parametrize(
    "name", ["nothing", "texts-", "texts-rollouts-000009", "previews-x", "texts-../config", "tokens-0"]
)
def test_a_document_that_is_not_there_is_none(documents, name):
    assert documents.get(name) is None


def test_tokens_have_what_was_recorded_and_what_a_replay_computed_of_these_rollouts(documents, run):
    first, second = (documents.get(f"tokens-rollouts-00000{step}") for step in (1, 2))
    assert "before" not in first["rows"][0]
    assert first["about"] is None
    assert second["about"]["weights"] == "those before"
    assert second["rows"][0]["engine"] == run.rollouts(2)[0]["logprobs"]
    assert {"before", "after", "entropy"} <= second["rows"][0].keys()


def test_what_a_replay_wrote_of_other_rollouts_is_not_shown(tmp_path):
    run = hostile_run(tmp_path / "run")
    run.write_rollouts(2, [paid(1, 0, "sampled anew")])
    assert Documents(run.path).get("tokens-rollouts-000002")["about"] is None


def test_a_run_without_a_tokenizer_is_shown_as_text_with_the_reason(tmp_path):
    run = write_run(tmp_path / "run", {2: [rollout(1, 0, "a")]}, {2: 1.0})
    (run.path / "config.yaml").write_text("model: /nowhere\n")
    found = Documents(run.path)
    assert "no tokenizer.json" in found.get("tokens-rollouts-000002")["missing"]
    (held_out,) = [name for name in found.names() if name.startswith("tokens-eval")]
    assert "recorded as text" in found.get(held_out)["missing"]


def test_a_run_that_goes_on_has_another_version_and_its_new_steps(tmp_path):
    run = write_run(tmp_path / "run", {1: [rollout(1, 0, "a")]})
    found = Documents(run.path)
    before = found.get("state")
    assert found.get("state") == before == {"version": before["version"], "finished": False}
    run.write_rollouts(2, [rollout(1, 0, "b")])
    assert found.get("state")["version"] != before["version"]
    assert len(found.get("index")["reward"]) == 2
    run.write_rollouts(1, [rollout(1, 0, "a"), rollout(1, 1, "sampled anew")])
    assert len(found.get("index")["reward"]) == 3
    (run.path / "rollouts" / "step-000001.jsonl").unlink()
    assert [part["step"] for part in found.get("index")["parts"]] == [2]


def test_lines_that_are_no_completion_are_counted(tmp_path):
    run = write_run(tmp_path / "run", {1: [rollout(1, 0, "a")]})
    with (run.path / "rollouts" / "step-000001.jsonl").open("a") as file:
        file.write('{"task_id": 1}\nnot json\n')
    assert Documents(run.path).get("index")["unreadable"] == 2


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run directory"):
        Documents(tmp_path)


def test_the_page_its_files_and_the_documents_are_served_behind_the_secret(server):
    assert asked(server, f"/{SECRET}/")[:2] == (HTTPStatus.OK, "text/html; charset=utf-8")
    for name in ASSETS:
        assert asked(server, f"/{SECRET}/page/{name}")[2] == asset(name)
    assert json.loads(asked(server, f"/{SECRET}/data/index.json")[2])["reward"][0] == 1.0
    assert asked(server, f"/{SECRET}/", host="localhost")[0] == HTTPStatus.OK


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:8000", "127.0.0.1:", "127.0.0.1:1"])
def test_a_request_under_another_name_is_refused_also_with_the_secret(server, host):
    assert asked(server, f"/{SECRET}/", host=host)[0] == HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/data/index.json", f"/{SECRET}", f"/{SECRET.lower()}/", f"/{SECRET}x/", "/é/"]
)
def test_without_the_whole_address_there_is_nothing(server, path):
    assert asked(server, path)[0] == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(
    "rest",
    [
        *("page/../serving.py", "page/page.html", "page//etc/passwd", "page/%2e%2e/columns.py", "page/"),
        *("data/../../config.yaml", "data/texts-..%2f.json", "data/index", "data/index.json/", "config.yaml"),
        *("../../../etc/passwd", "data/texts-rollouts-000001\x00.json"),
    ],
)
def test_no_path_leads_to_a_file(server, rest):
    assert asked(server, f"/{SECRET}/{rest}")[0] == HTTPStatus.NOT_FOUND


def test_the_server_listens_on_the_loopback_address_and_sends_its_policy(documents):
    with PageServer(documents, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert server.server_address[0] == "127.0.0.1"
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", f"/{server.secret}/")
        found = connection.getresponse()
        assert (found.status, found.read()) == (200, page("server"))
        policy = found.getheader("Content-Security-Policy")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        connection.request("POST", f"/{server.secret}/")
        assert connection.getresponse().status == 501
        with pytest.raises(ConfigError, match=f"--port {server.server_port} cannot be listened on"):
            PageServer(documents, server.server_port)
        server.shutdown()
        thread.join(10)


class SlowDocuments:
    """Documents that take until they are told to be there."""

    def __init__(self):
        self.asked, self.are_there = threading.Event(), threading.Event()

    def encoded(self, name):
        self.asked.set()
        self.are_there.wait(30)
        return b"{}"


def test_strangers_do_not_close_the_connection_of_whoever_has_the_secret():
    documents = SlowDocuments()
    with PageServer(documents, 0) as server, ThreadPoolExecutor(1) as pool:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.most_connections = 4
        own = pool.submit(lambda: urlopen(f"{server.url}data/index.json", timeout=30).read())
        assert documents.asked.wait(30)
        strangers = [socket.create_connection(("127.0.0.1", server.server_port), 10) for _ in range(10)]
        strangers[-1].sendall(b"GET /guess/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 421 " in strangers[-1].recv(100)  # by now all of them have been accepted
        documents.are_there.set()
        assert own.result() == b"{}"
        server.shutdown()
        for one in strangers:
            one.close()


def test_every_script_of_the_page_is_loaded_and_none_is_inline():
    text = page("server").decode()
    assert re.findall(r'<script src="page/([^"]+)" defer></script>', text) == list(SCRIPTS)
    assert len(re.findall("<script", text)) == len(SCRIPTS)
    assert "<!--" not in text


def test_no_script_of_the_page_makes_markup_or_code_of_a_text():
    for name in SCRIPTS:
        made = re.findall(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", asset(name))
        assert made == []


def test_an_export_is_scripts_of_two_texts_in_ascii_and_the_page_last(documents, tmp_path):
    written = export(documents, tmp_path / "out")
    assert written.read_bytes() == page("files")
    for name in documents.names():
        content = (tmp_path / "out" / "data" / f"{name}.js").read_bytes()
        assert content.isascii()
        found = re.fullmatch(rb'receive\((".*"), (".*")\);\n', content)
        assert json.loads(found[1]) == name
        assert json.loads(json.loads(found[2])) == loaded(documents.get(name))


def test_an_export_never_writes_into_a_directory_that_holds_something(documents, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConfigError, match=r"--static .* is not empty"):
        export(documents, tmp_path)
    with pytest.raises(ConfigError, match=r"--static .* is not empty"):
        export(documents, tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_command_writes_the_page_and_says_where(run, tmp_path, capsys):
    assert main(["rollouts", str(run.path), "--static", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'index.html'}\n"


@pytest.mark.long
@pytest.mark.usefixtures("heeded_signals")
def test_the_command_serves_until_it_is_interrupted(run):
    command = [sys.executable, "-m", "paceline", "rollouts", str(run.path), "--open", "false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        with urlopen(f"{url}data/state.json", timeout=10) as found:
            assert json.load(found)["finished"] is False
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=20)
    assert (process.returncode, complaints) == (0, "")
    assert said.endswith("ended\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "rollouts needs a run directory first"),
        (["RUN", "--port", "70000"], "--port must be a whole number from 0 to 65535, got '70000'"),
        (["RUN", "--open", "maybe"], "--open must be true or false, got 'maybe'"),
        (["RUN", "--statick", "x"], "there is no option --statick"),
        (["RUN/nowhere"], "is not a run directory"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(run, capsys, words, sentence):
    assert main(["rollouts", *(word.replace("RUN", str(run.path)) for word in words)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_the_index_says_how_a_run_ended_that_did_not_finish(tmp_path):
    path = write_run(tmp_path / "run", {1: [rollout(0, 0, "5")]}).path
    with RunDir.open(path):
        documents = Documents(path)
        before = documents.get("state")
        assert documents.get("index")["ending"] is None
    write_ending(path, ending_of(TrainingError("the loss is nan"), step=1, resume="`paceline train --resume run`"))
    assert documents.get("state")["version"] != before["version"]
    ending = documents.get("index")["ending"]
    assert [ending[name] for name in ("sentence", "status", "step", "traceback")] == ["the loss is nan", 1, 1, None]


def picture_run(path, pictures):
    """A run with one rollout for each of these pictures; the first has two images, one of which is not there."""
    images = [[{"sha256": picture.sha256, "start": 0, "length": 9}] for picture in pictures]
    images[0].append({"sha256": "0" * 64, "start": 10, "length": 4})
    records = [rollout(at, 0, "two", images=named) for at, named in enumerate(images)]
    run = write_run(path, {1: records})
    run.write_images(pictures[0].store, [picture.sha256 for picture in pictures])
    return run


def noise(store, size, seed):
    return store.add(Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1])))


def test_images_are_shown_as_small_copies_encoded_anew(tmp_path):
    store = PictureStore()
    wide = noise(store, (640, 320), 1)
    hidden = b"<script>alert(1)</script>"
    run = picture_run(tmp_path / "run", [wide])
    file = run.path / "images" / wide.sha256
    file.write_bytes(file.read_bytes() + hidden)  # the same pixels, and something behind them
    documents = Documents(run.path)
    texts = documents.get("texts-rollouts-000001")
    assert texts["images"] == [
        [{"name": f"image-{wide.sha256}", "tokens": 9}, {"name": f"image-{'0' * 64}", "tokens": 4}]
    ]
    copy = loaded(documents.get(f"image-{wide.sha256}"))
    kind, content = copy["source"].split(",")
    shown = Image.open(io.BytesIO(base64.b64decode(content)))
    assert (kind, shown.format, shown.size) == ("data:image/png;base64", "PNG", (256, 128))
    assert (copy["width"], copy["height"]) == (640, 320)
    assert hidden not in base64.b64decode(content)
    lost = loaded(documents.get(f"image-{'0' * 64}"))["missing"]
    assert lost == "the image 000000000000 is missing in the run's directory, or is not what was recorded"
    assert str(tmp_path) not in lost
    assert documents.get(f"image-{'1' * 64}") is None  # no completion names it


@pytest.mark.parametrize("name", ["../" * 20 + "etc/passwd", "A" * 64, "", None, 7, ["0" * 64], "0" * 63 + "\n"])
def test_a_name_that_is_no_hash_is_no_image(tmp_path, name):
    records = [rollout(0, 0, "two", images=[{"sha256": name, "start": 0, "length": 1}, "text", None])]
    documents = Documents(write_run(tmp_path / "run", {1: records}).path)
    assert documents.get("texts-rollouts-000001")["images"] == [[]]
    assert not [name for name in documents.names() if name.startswith("image")]


def test_a_page_in_a_directory_holds_images_up_to_its_bound_and_says_what_it_left_out(tmp_path, monkeypatch):
    store = PictureStore()
    pictures = [noise(store, (64, 64), seed) for seed in range(6)]
    monkeypatch.setattr("paceline.reports.viewer.serving.MOST_IMAGE_BYTES", 40_000)
    export(Documents(picture_run(tmp_path / "run", pictures).path), tmp_path / "page")
    written = {file.name: file.read_text() for file in (tmp_path / "page/data").glob("image-*.js")}
    assert len(written) == 7
    # noise of 64 x 64 takes 12,288 bytes and a few, 16.4 kB in Base64: the third passes the bound
    assert sum("data:image/png" in text for text in written.values()) == 3
    assert sum("left out, as the images of a directory" in text for text in written.values()) == 3
