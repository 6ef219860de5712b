"""A stranger's chat template is refused in a sentence where it has no end or no sense."""

import pytest

from paceline.chat.templates import chat_text
from paceline.errors import ModelError
from tests.support.tiny import tiny_tokenizer

LOOPS = "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        LOOPS,  # a second of work, which stands for a year
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(1000000000) }}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content }}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
    ],
)
def test_a_chat_template_without_an_end_is_refused_in_a_sentence(monkeypatch, template):
    monkeypatch.setattr("paceline.chat.templates.RENDER_SECONDS", 0.2)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match="the model's chat template"):
        chat_text(tokenizer, [{"role": "user", "content": "Hello."}], {})
