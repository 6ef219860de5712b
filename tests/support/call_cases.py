"""Turns with calls, sound and odd, in every format, and what they are read as."""

# ruff: noqa: RUF001 - the marks of DeepSeek's templates, letter by letter

F = '{"name": "f", "arguments": {"x": 1}}'
G = '{"name": "g", "arguments": {}}'
F_CALL, G_CALL = ("f", {"x": 1}), ("g", {})


def tags(*bodies: str) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def xml(name: str, *parameters: tuple[str, str]) -> str:
    return (
        f"<function={name}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters) + "</function>"
    )


def glm(name: str, *arguments: tuple[str, str], between: str = "\n") -> str:
    """As the template of GLM-4.5 writes it; that of GLM-4.7 has nothing between the tags."""
    pairs = [f"<arg_key>{key}</arg_key>{between}<arg_value>{value}</arg_value>" for key, value in arguments]
    return "<tool_call>" + between.join([name, *pairs, "</tool_call>"])


def deepseek(*calls: str) -> str:
    """As the template of DeepSeek-V3.1 writes them: `f<｜tool▁sep｜>{}` each."""
    bodies = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{bodies}<｜tool▁calls▁end｜>"


def kimi(*calls: str) -> str:
    """As the template of Kimi-K2 writes them: `functions.f:0<|tool_call_argument_begin|>{}` each."""
    bodies = "".join(f"<|tool_call_begin|>{call}<|tool_call_end|>" for call in calls)
    return f"<|tool_calls_section_begin|>{bodies}<|tool_calls_section_end|>"


FENCED = 'function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```'
KIMI_F = 'functions.f:0<|tool_call_argument_begin|>{"x": 1}'

# Format, text, content, calls.
READ = [
    ("hermes", "Hello.", "Hello.", []),
    ("hermes", "", "", []),
    ("hermes", tags(F), "", [F_CALL]),
    ("hermes", f" One.\n{tags(F, G)}\nTwo. ", "One.\n\n\nTwo.", [F_CALL, G_CALL]),
    ("hermes", tags(F, F), "", [F_CALL, F_CALL]),
    ("hermes", "<tool_call>" + F + "</tool_call>", "", [F_CALL]),
    ("hermes", tags('{"name": "f", "arguments": "{\\"x\\": 1}"}'), "", [F_CALL]),  # as OpenAI's API has it
    ("hermes", tags('{"name": "f", "parameters": {"x": 1}}'), "", [F_CALL]),
    ("hermes", tags('{"type": "function", "id": "7", "function": ' + F + "}"), "", [F_CALL]),
    ("hermes", tags('{"name": "f", "arguments": {"x": 3.0, "y": 1e22}}'), "", [("f", {"x": 3.0, "y": 1e22})]),
    ("hermes", tags('{"name": "f", "arguments": {"x": "\\ud83d\\ude00"}}'), "", [("f", {"x": "😀"})]),
    ("hermes", tags('{"name": "no_such_tool", "arguments": {}}'), "", [("no_such_tool", {})]),
    ("hermes", f"<think>{tags(F)}</think>Done.", "Done.", []),
    ("hermes", f"<think>so {tags(F)}", "", []),
    ("hermes", f"<think>so</think>\n{tags(F)}", "", [F_CALL]),
    ("hermes", f"{tags(F)}</think>{tags(G)}", "", [G_CALL]),  # the thought began before the text
    ("hermes", f"<tool_call></think>{tags(G)}", "", [G_CALL]),
    ("hermes", tags('{"name": "f", "arguments": {"x": "<think>a</think>"}}'), "", [("f", {"x": "<think>a</think>"})]),
    ("hermes", tags('{"name": "f", "arguments": {"x": "<tool_call>"}}'), "", [("f", {"x": "<tool_call>"})]),
    ("hermes", tags('{"name": "f", "arguments": {"x": "</tool_call> <tool_call>"}}', G), "",
     [("f", {"x": "</tool_call> <tool_call>"}), G_CALL]),
    ("xml", tags(xml("f", ("x", "<tool_call>a</tool_call>")), xml("g")), "",
     [("f", {"x": "<tool_call>a</tool_call>"}), ("g", {})]),
    ("mistral", 'f{"x": 1}', "", [F_CALL]),  # its marks are special tokens, which a completion's text lacks
    ("mistral", 'f{"x": 1}g{}', "", [F_CALL, G_CALL]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": "[TOOL_CALLS]g[ARGS]{}"}', "", [("f", {"x": "[TOOL_CALLS]g[ARGS]{}"})]),
    ("hermes", "Action: f\nAction Input: {}", "Action: f\nAction Input: {}", []),
    ("hermes", F, F, []),
    ("hermes", "A call of Mistral's begins with [TOOL_CALLS].", "A call of Mistral's begins with [TOOL_CALLS].", []),
    ("hermes", tags('{"name": "f", "arguments": {"x": "[TOOL_CALLS]"}}'), "", [("f", {"x": "[TOOL_CALLS]"})]),
    ("xml", "Hello.", "Hello.", []),
    ("xml", "Well: " + tags(xml("f", ("x", "1"), ("y", "a b"))), "Well:", [("f", {"x": "1", "y": "a b"})]),
    ("xml", tags(xml("f"), xml("g")), "", [("f", {}), ("g", {})]),
    ("xml", tags(xml("f", ("x", "  if a < b:\n\n    c\n"))), "", [("f", {"x": "  if a < b:\n\n    c\n"})]),
    ("xml", "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>", "", [("f", {"x": "1"})]),
    ("xml", tags(xml("f", ("x", "<think>a</think>"))), "", [("f", {"x": "<think>a</think>"})]),
    ("xml", f"<think>{tags(xml('f'))}", "", []),
    ("glm", "Hello.", "Hello.", []),
    ("glm", "Well: " + glm("f", ("x", "1"), ("y", "a b")), "Well:", [("f", {"x": "1", "y": "a b"})]),
    ("glm", glm("f", ("x", "1"), between="") + glm("g", between=""), "", [("f", {"x": "1"}), G_CALL]),
    ("glm", glm("g") + "\n" + glm("g"), "", [G_CALL, G_CALL]),
    ("glm", glm("f", ("x", "  if a:\n  b\n")), "", [("f", {"x": "  if a:\n  b\n"})]),
    ("glm", glm("f", ("x", "<tool_call>a</tool_call>")), "", [("f", {"x": "<tool_call>a</tool_call>"})]),
    ("glm", f"<think>{glm('f')}</think>Done.", "Done.", []),
    ("deepseek", "Hello.", "Hello.", []),
    ("deepseek", "Well. " + deepseek('f<｜tool▁sep｜>{"x": 1}', "g<｜tool▁sep｜>{}"), "Well.", [F_CALL, G_CALL]),
    ("deepseek", deepseek(FENCED), "", [F_CALL]),  # V3 and R1
    ("deepseek", deepseek(FENCED, FENCED).replace("<｜tool▁calls▁end｜>", "\n"), "", [F_CALL, F_CALL]),
    ("deepseek", deepseek('f<｜tool▁sep｜>{"x": "<｜tool▁call▁end｜>"}'), "", [("f", {"x": "<｜tool▁call▁end｜>"})]),
    ("deepseek", deepseek('f<｜tool▁sep｜>{"x": "</tool_call>"}'), "", [("f", {"x": "</tool_call>"})]),
    ("deepseek", f"<think>{deepseek('g<｜tool▁sep｜>{}')}", "", []),
    ("kimi", "Hello.", "Hello.", []),
    ("kimi", "Well. " + kimi(KIMI_F, "functions.g:1<|tool_call_argument_begin|>{}"), "Well.", [F_CALL, G_CALL]),
    ("kimi", kimi("\nfunctions.a.b:12 <|tool_call_argument_begin|> {} "), "", [("a.b", {})]),
    ("kimi", kimi(KIMI_F).removesuffix("<|tool_calls_section_end|>"), "", [F_CALL]),
    ("kimi", kimi('f:0<|tool_call_argument_begin|>{"x": "<|tool_call_end|>"}'), "",
     [("f", {"x": "<|tool_call_end|>"})]),
    ("kimi", f"<think>{kimi(KIMI_F)}</think>Hm.", "Hm.", []),
    ("mistral", "Hello.", "Hello.", []),
    ("mistral", f"[TOOL_CALLS][{F}, {G}]", "", [F_CALL, G_CALL]),
    ("mistral", f"Well. [TOOL_CALLS] [{F}]\n", "Well.", [F_CALL]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}]', "", [F_CALL]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', "", [F_CALL, G_CALL]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": 1}', "", [F_CALL]),
    ("mistral", '[TOOL_CALLS]f{"x": 1}', "", [F_CALL]),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("mistral", f"[{F}]", f"[{F}]", []),
    ("mistral", f"<think>[TOOL_CALLS][{F}]</think>Hm.", "Hm.", []),
    ("llama", "Hello {name}.", "Hello {name}.", []),
    ("llama", ' {"name": "f", "parameters": {"x": 1}}\n', "", [F_CALL]),
    ("llama", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [F_CALL]),
    ("llama", 'Well. <|python_tag|>{"name": "f", "parameters": {"x": 1}}', "Well.", [F_CALL]),
    ("llama", '{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}', "", [F_CALL, G_CALL]),
    ("llama", '{"type": "function", "name": "f", "parameters": {"x": 1}}', "", [F_CALL]),
    ("llama", '{"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}', "", [F_CALL]),
    ("llama", f"Well. {F}", f"Well. {F}", []),
    ("llama", f"<think>{F}</think>{G}", "", [G_CALL]),
    ("llama", '{"name": "f", "parameters": {"x": "</think>"}}', "", [("f", {"x": "</think>"})]),
    ("llama", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    ("llama", "{x | x > 0} is a set", "{x | x > 0} is a set", []),
    ("openai", "Hello.", "Hello.", []),
    ("openai", F, "", [F_CALL]),
    ("openai", f"[{F}, {G}]", "", [F_CALL, G_CALL]),
    ("openai", '{"tool_calls": [' + F + ', {"type": "function", "function": ' + G + "}]}", "", [F_CALL, G_CALL]),
    ("openai", '{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}', "", [F_CALL]),
    ("openai", '{"content": "Hi.", "tool_calls": null}', '{"content": "Hi.", "tool_calls": null}', []),
    ("openai", '{"result": 4}', '{"result": 4}', []),
    ("openai", "[1] says so", "[1] says so", []),
    ("openai", "[1, 2]", "[1, 2]", []),
    ("react", "Hello.", "Hello.", []),
    ("react", 'Thought: hm\nAction: f\nAction Input: {"x": 1}', "Thought: hm", [F_CALL]),
    ("react", 'Action: f\nAction Input: {"q": "Action: g"}', "", [("f", {"q": "Action: g"})]),
    ("react", 'Action: g\nAction Input: {}\nAction: f\nAction Input: {\n"x": 1}\n', "Action: g\nAction Input: {}",
     [F_CALL]),  # one call in a turn: the last
    ("react", 'Action: f\nAction Input: {"x": 1}\nObservation: 2\nAction: g\nAction Input: {}',
     "Observation: 2\nAction: g\nAction Input: {}", [F_CALL]),  # the model has made up what the tool said
    ("react", "Observation: 2\nAction: g\nAction Input: {}", "Observation: 2\nAction: g\nAction Input: {}", []),
    ("react", "Action: f\nAction Input: capital of Norway", "", [("f", {"input": "capital of Norway"})]),
    ("react", 'Action: f\nAction Input: "a"', "", [("f", {"input": '"a"'})]),
    ("react", "Action: g\nAction Input:", "", [G_CALL]),
    ("react", "say Action: a then Action Input: {}", "say Action: a then Action Input: {}", []),
    ("react", '<think>Action: f\nAction Input: {"x": 1}', "", []),
    ("react", "Final Answer: 42", "Final Answer: 42", []),
]  # fmt: skip

NOT_JSON = 'a call is no JSON: write {"name": ..., "arguments": {...}}'
NO_CALL = 'a call is no object with "name" and "arguments"'
NOT_CLOSED = "a call is not closed: write </tool_call> after it"
AFTER = "text stands after the JSON of a call: write nothing there"
TOO_DEEP = "a call is no JSON: it is nested more than 100 deep"
OTHER = "{} is a mark of another form of calls: write all calls in one form"
NO_ACTION = '"Action:" with the name of a tool and "Action Input:" do not follow each other'
NO_FUNCTION = "a call is no <function=NAME>...</function>, with one <parameter=NAME>...</parameter> each"


NO_GLM = "a call is no NAME, with <arg_key>NAME</arg_key><arg_value>...</arg_value> for each argument"
NO_ARGUMENT = 'an argument of "f" is no <arg_key>NAME</arg_key><arg_value>...</arg_value>'
NO_DEEPSEEK = "a call is no NAME<｜tool▁sep｜>{...}"
NO_KIMI = "a call is no functions.NAME:0<|tool_call_argument_begin|>{...}"
KIMI_OPEN = "a call is not closed: write <|tool_call_end|> after it"
DEEPSEEK_OPEN = "a call is not closed: write <｜tool▁call▁end｜> after it"


def deep(levels: int) -> str:
    return '{"name": "f", "arguments": {"x": ' + "[" * levels + "]" * levels + "}}"


# Format, text, line for the model.
MALFORMED = [
    ("hermes", f"<tool_call>{F}", NOT_CLOSED),
    ("hermes", f"{tags(F)}<tool_call>", NOT_CLOSED),
    ("hermes", f"<tool_call>{F}<tool_call>{G}</tool_call>", NOT_CLOSED),
    ("hermes", f"{F}</tool_call>", "</tool_call> closes nothing: write <tool_call> before a call"),
    ("hermes", tags(F) + "</tool_call>", "</tool_call> closes nothing: write <tool_call> before a call"),
    ("hermes", tags(""), NOT_JSON),
    ("hermes", tags('{"name": "f", "arguments": {"x": 1}'), NOT_JSON),
    ("hermes", tags('{"name": "f", "arguments": {"x": 1,}}'), NOT_JSON),
    ("hermes", tags("{'name': 'f', 'arguments': {}}"), NOT_JSON),
    ("hermes", tags('{"name": "f", "arguments": {"x": "a\nb"}}'), NOT_JSON),
    ("hermes", tags('{"name": "f", "arguments": {"x": 1' + "0" * 5000 + "}}"), NOT_JSON),
    ("hermes", tags(F, "{"), NOT_JSON),  # the first call is not carried out either
    ("hermes", tags(xml("f")), NOT_JSON),
    ("hermes", tags(F + G), AFTER),
    ("hermes", tags('{"name": "f", "arguments": {"x": NaN}}'), "a call is no JSON: NaN is no JSON number"),
    ("hermes", tags('{"name": "f", "arguments": {"x": -Infinity}}'), "a call is no JSON: -Infinity is no JSON number"),
    ("hermes", tags('{"name": "f", "arguments": {"x": 1e999}}'), "a call is no JSON: 1e999 is no JSON number"),
    ("hermes", tags('{"name": "f", "arguments": {"x": 1, "x": 2}}'), 'a call is no JSON: the key "x" is given twice'),
    ("hermes", tags('{"\\ud800": 1, "\\ud800": 2}'), 'a call is no JSON: the key "\\ud800" is given twice'),
    ("hermes", tags('{"name": "f", "arguments": {"x": "\\ud800"}}'),
     "a call is no JSON: half a surrogate pair is no character"),
    ("hermes", tags('{"name": "f", "arguments": {"\\udc00": 1}}'),
     "a call is no JSON: half a surrogate pair is no character"),
    ("hermes", tags(deep(99)), TOO_DEEP),
    ("hermes", tags(deep(100_000)), TOO_DEEP),
    ("hermes", tags("[1]"), NO_CALL),
    ("hermes", tags(f"[{F}]"), NO_CALL),
    ("hermes", tags('"f"'), NO_CALL),
    ("hermes", tags('{"arguments": {}}'), NO_CALL),
    ("hermes", tags('{"name": " ", "arguments": {}}'), NO_CALL),
    ("hermes", tags('{"name": 5, "arguments": {}}'), NO_CALL),
    ("hermes", tags('{"name": "f"}'), NO_CALL),
    ("hermes", tags('{"name": "f", "arguments": null}'), NO_CALL),
    ("hermes", tags('{"name": "f", "arguments": {}, "parameters": {}}'), NO_CALL),
    ("hermes", tags('{"name": "f", "arguments": [1]}'), 'the arguments of "f" are no JSON object'),
    ("hermes", tags('{"name": "f", "arguments": "[1]"}'), 'the arguments of "f" are no JSON object'),
    ("hermes", tags('{"name": "f", "arguments": "Oslo"}'), NOT_JSON),
    ("hermes", tags('{"name": "' + "f" * 99 + '", "arguments": 1}'),
     f'the arguments of "{"f" * 60}" are no JSON object'),
    ("xml", f"<tool_call>{xml('f')}", NOT_CLOSED),
    ("xml", xml("f"), "<function=NAME> stands alone: write <tool_call> before it, </tool_call> after it"),
    ("xml", tags(F), NO_FUNCTION),
    ("xml", tags("<function=f>"), NO_FUNCTION),
    ("xml", tags("<function=></function>"), NO_FUNCTION),
    ("xml", tags("<function=f>x = 1</function>"), 'an argument of "f" is no <parameter=NAME>...</parameter>'),
    ("xml", tags("<function=f><parameter=x>1</function>"), 'an argument of "f" is no <parameter=NAME>...</parameter>'),
    ("xml", tags(xml("f", ("x", "1"), ("x", "2"))), 'the argument "x" of "f" is given twice'),
    ("glm", glm("f", ("x", "1"))[:-1], NOT_CLOSED),
    ("glm", glm("f", ("x", "1")).replace("</arg_value>", ""), NO_ARGUMENT),
    ("glm", glm("f", ("x", "1")).replace("<arg_value>", ""), NO_ARGUMENT),
    ("glm", glm("f", ("x", "1")) + glm("f", ("x", "1")).replace("</arg_value>", ""), NO_ARGUMENT),
    ("glm", glm("f", ("x", "1"), ("x", "2")), 'the argument "x" of "f" is given twice'),
    ("glm", glm(""), NO_GLM),
    ("glm", glm("f and g"), NO_GLM),
    ("glm", glm("f") + "</tool_call>", "</tool_call> closes nothing: write <tool_call> before a call"),
    ("deepseek", deepseek('f<｜tool▁sep｜>{"x": '), NOT_JSON),
    ("deepseek", deepseek("f<｜tool▁sep｜>[1]"), 'the arguments of "f" are no JSON object'),
    ("deepseek", deepseek("f<｜tool▁sep｜>{} so"), AFTER),
    ("deepseek", deepseek("f{}"), NO_DEEPSEEK),
    ("deepseek", deepseek("<｜tool▁sep｜>{}"), NO_DEEPSEEK),
    ("deepseek", deepseek(FENCED).partition("\n```<")[0], DEEPSEEK_OPEN),  # cut in the middle
    ("deepseek", "Well. <｜tool▁calls▁begin｜>",
     "<｜tool▁calls▁begin｜> stands without a call: write <｜tool▁call▁begin｜> and <｜tool▁call▁end｜> around each"),
    ("kimi", kimi('functions.f:0<|tool_call_argument_begin|>{"x": '), NOT_JSON),
    ("kimi", kimi("functions.f:0<|tool_call_argument_begin|>5"), 'the arguments of "f" are no JSON object'),
    ("kimi", kimi("functions.f<|tool_call_argument_begin|>{}"), NO_KIMI),
    ("kimi", kimi(KIMI_F, "functions.:1<|tool_call_argument_begin|>{}"), NO_KIMI),
    ("kimi", kimi(KIMI_F).partition("<|tool_call_end|>")[0], KIMI_OPEN),  # cut in the middle
    ("kimi", kimi(KIMI_F) + "<|tool_call_end|>",
     "<|tool_call_end|> closes nothing: write <|tool_call_begin|> before a call"),
    ("hermes", tags(F) + "[TOOL_CALLS]g[ARGS]{}", OTHER.format("[TOOL_CALLS]")),
    ("hermes", f"[TOOL_CALLS]g[ARGS]{{}} {tags(F)}", OTHER.format("[TOOL_CALLS]")),
    ("hermes", f"{tags(F)}<|python_tag|>{G}", OTHER.format("<|python_tag|>")),
    ("hermes", tags(F) + kimi("functions.g:1<|tool_call_argument_begin|>{}"),
     OTHER.format("<|tool_calls_section_begin|>")),
    ("xml", tags(xml("f")) + "[TOOL_CALLS]g[ARGS]{}", OTHER.format("[TOOL_CALLS]")),
    ("glm", glm("f") + f"<|python_tag|>{G}", OTHER.format("<|python_tag|>")),
    ("kimi", kimi(KIMI_F) + tags(G), OTHER.format("<tool_call>")),
    ("deepseek", deepseek(FENCED) + tags(G), OTHER.format("<tool_call>")),
    ("mistral", f"<tool_call>{G} [TOOL_CALLS]f[ARGS]{{}}", OTHER.format("<tool_call>")),
    ("llama", f"</tool_call><|python_tag|>{F}", OTHER.format("</tool_call>")),
    ("mistral", "[TOOL_CALLS]", NOT_JSON),
    ("mistral", f"[TOOL_CALLS][{F}", NOT_JSON),
    ("mistral", f"[TOOL_CALLS][{F}] so", AFTER),
    ("mistral", "[TOOL_CALLS]f", NOT_JSON),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": ', NOT_JSON),
    ("mistral", "[TOOL_CALLS][1]", NO_CALL),
    ("llama", '{"name": "f", "parameters": {"x"', NOT_JSON),
    ("llama", f"{F} Hope that helps", AFTER),
    ("llama", "<|python_tag|>print(1)", NOT_JSON),
    ("llama", "<|python_tag|>", NOT_JSON),
    ("llama", '<|python_tag|>{"x": 1}', NO_CALL),
    ("llama", '{"name": "f", "parameters": 5}', 'the arguments of "f" are no JSON object'),
    ("openai", f"[{F}, 5]", NO_CALL),
    ("openai", '{"tool_calls": 5}', NO_CALL),
    ("openai", '[{"name": "f", "arguments": {}', NOT_JSON),
    ("react", "Action: f", NO_ACTION),
    ("react", "Action:\nAction Input: {}", NO_ACTION),
    ("react", "Action Input: {}", NO_ACTION),
    ("react", "Action Input: {}\nAction: f", NO_ACTION),
    ("react", "Action: f\nThought: hm\nAction Input: {}", NO_ACTION),
    ("react", "Action: f\nAction Input: {}\nAction: g", NO_ACTION),
    ("react", 'Action: f\nAction Input: {"x": 1', NOT_JSON),
    ("react", 'Action: f\nAction Input: {"x": 1}\n\nI wait.', AFTER),
    ("react", 'Action: f\nAction Input: {"x": 1, "x": 2}', 'a call is no JSON: the key "x" is given twice'),
]  # fmt: skip
