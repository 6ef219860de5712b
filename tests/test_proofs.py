"""Every test file says in a sentence what it proves, and the page of proofs has each with its seconds."""

import pytest

from scripts.proofs import TESTS, claim, files, page, seconds_of

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_proofs" name="a" time="1.25"/>
<testcase classname="tests.test_proofs.TestClass" name="b" time="0.5"/>
<testcase classname="tests.test_site" name="c" time="9"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.mark.long
def test_every_test_file_says_what_it_proves_in_a_sentence():
    claims = {str(file.relative_to(TESTS)): claim(file) for file in files()}
    odd = {name: said for name, said in claims.items() if not said.endswith(".") or said.startswith("This ")}
    assert odd == {}  # a docstring of one sentence at the file's top, such as the one of this file


@pytest.mark.long
@pytest.mark.parametrize(("file", "seconds"), [("test_proofs.py", "1.8"), ("test_site.py", "")])
def test_a_files_seconds_are_the_sum_over_its_tests_and_a_skipped_one_has_none(tmp_path, file, seconds):
    (tmp_path / "tests.xml").write_text(REPORT)
    (row,) = [line for line in page(seconds_of(tmp_path / "tests.xml")).splitlines() if f"| `{file}` |" in line]
    assert row == f"| {claim(TESTS / file)} | `{file}` | {seconds} |"
