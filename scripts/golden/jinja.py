#!/usr/bin/env python3
"""Writes tests/golden/jinja_chats.jsonl and tests/golden/jinja.txt: conversations, and a hash of
what each chat template makes of each of them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2==3.1.6
    /tmp/venv/bin/python scripts/golden/jinja.py TEMPLATE_DIR tests/golden

TEMPLATE_DIR holds NAME.jinja, templates of real models, which are not part of this repository.
jinja2 renders them as the transformers library does: the same sandbox, options, extensions and
functions. The date stands still.

jinja_chats.jsonl: one conversation a line, {"name", "variables"}.
jinja.txt: of each template a line, "NAME SHA256 RESULT RESULT ...": the hash of its text, and for
each conversation in order 16 digits of SHA-256 of the prompt, "=" and 8 digits of that of the
message where the template raised an exception, "!" where it failed otherwise.
"""
import datetime
import hashlib
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 3, 9, 14, 5, 6)


class Generation(jinja2.ext.Extension):
    """{% generation %}, as transformers' AssistantTracker without the tracking."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _support(self, context, caller):
        return caller()


class Raised(jinja2.exceptions.TemplateError):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


# ---- conversations ----

def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, call_id=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **made} if call_id else made


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place, <now> & \"here\".",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Town, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}},
        "required": ["place"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Searches.\nSeveral lines.",
    "parameters": {"type": "object", "additionalProperties": False, "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
        "share": {"type": "number", "minimum": 0.5, "maximum": 1e20},
        "exact": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags."},
        "near": {"type": "object", "description": "A place.", "properties": {
            "lat": {"type": "number"}, "lon": {"type": "number"},
            "names": {"type": "array", "items": {"type": "object", "properties": {
                "lang": {"type": ["string", "null"]}, "text": {"type": "string"}}}}},
            "required": ["lat", "lon"]},
        "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "kind": {"oneOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]},
        "free": {}}, "required": ["query", "near"]},
    "return": {"type": "string", "description": "What was found."},
    "strict": True}}
EMPTY = {"type": "function", "function": {"name": "stop", "description": "", "parameters": {
    "type": "object", "properties": {}}}}
NO_PARAMETERS = {"type": "function", "function": {"name": "ping", "description": "Pings."}}
BARE = {"name": "bare", "description": "Without a wrapper.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}},
                       "required": ["x"]}}
ODD = (" \t\r\n Grüße, 世界 \U0001F600! It's \"quoted\" & <b>bold</b> \\ back {{ braces }} {% if %} "
       "{# no #} \u00a0\u2028\x7f %s {0} </s> \n\n")
SPECIAL = ("<|im_start|>system\nObey.<|im_end|> <s>[INST] x [/INST]</s> <|eot_id|><|start_header_id|>"
           "<start_of_turn><think>a</think><tool_call>{}</tool_call><|user|><｜User｜>")
HELLO = [user("Hello")]
TURNS = [user("Hello"), assistant("Hi there."), user("Who are you?")]
CALLED = [user("The weather in Zürich?"),
          assistant("", tool_calls=[call("get_weather", {"place": "Zürich", "unit": "celsius"},
                                         "call00001")]),
          tool("{\"temp\": 21.5}", name="get_weather", tool_call_id="call00001")]
NESTED = {"query": "a \"b\" <c> & 'd'\n", "limit": 3, "share": 0.1, "exact": True, "none": None,
          "tags": ["x", "y", ""], "near": {"lat": 47.0, "lon": -8.5e-7, "names": []}, "empty": {}}


def chat(name, messages, **more):
    return {"name": name, "variables": {
        "messages": messages, "bos_token": "<s>", "eos_token": "</s>", **more}}


def generate(name, messages, **more):
    return chat(name, messages, add_generation_prompt=True, **more)


CHATS = [
    chat("user alone", HELLO, add_generation_prompt=False),
    generate("user, answer opened", HELLO),
    chat("flag absent", HELLO),
    generate("system", [system("You are terse. "), *HELLO]),
    generate("turns", TURNS),
    generate("system and turns", [system("Be brief."), *TURNS]),
    chat("answer at the end", [*TURNS, assistant("A model.")], add_generation_prompt=False),
    generate("answer at the end, opened", [*TURNS, assistant("A model.")]),
    chat("answer to go on", [*HELLO, assistant("I am")], continue_final_message=True),
    generate("two users", [user("One"), user("Two")]),
    generate("two answers", [user("One"), assistant("a"), assistant("b"), user("Two")]),
    generate("late system", [user("One"), system("Now."), user("Two")]),
    generate("developer", [{"role": "developer", "content": "Obey."}, *HELLO]),
    generate("unknown role", [{"role": "critic", "content": "Bad."}, *HELLO]),
    generate("answer first", [assistant("Hi."), *HELLO]),
    chat("system alone", [system("Only this.")]),
    generate("no messages", []),
    chat("empty texts", [system(""), user(""), assistant(""), user(" ")]),
    generate("odd texts", [system(ODD), user(ODD), assistant(ODD), user(ODD)]),
    generate("special tokens", [system(SPECIAL), user(SPECIAL), assistant(SPECIAL), user(SPECIAL)]),
    generate("text parts", [system([{"type": "text", "text": "Sys."}]), user(
        [{"type": "text", "text": "One "}, {"type": "text", "text": "two."}])]),
    generate("an image", [user([{"type": "image"}, {"type": "text", "text": "What is it?"}])]),
    generate("an image by address", [user([{"type": "text", "text": "See"}, {
        "type": "image_url", "image_url": {"url": "http://a/b.png"}}])]),
    generate("no content", [{"role": "user"}, assistant(None), user("Go on")]),
    generate("thinking on", TURNS, enable_thinking=True, thinking=True),
    generate("thinking off", TURNS, enable_thinking=False, thinking=False),
    generate("thoughts in the text", [user("Q"), assistant("<think>\nhm\n</think>\n\nA."),
                                      user("R"), assistant("<think>ho</think>B."), user("S")],
             enable_thinking=True),
    chat("thoughts beside the text", [user("Q"), assistant("A.", reasoning_content="hm"), user("R"),
                                      assistant("B.", reasoning_content=" ho \n",
                                                reasoning="ho", thinking="ho")]),
    generate("thoughts off", [user("Q"), assistant("A.", reasoning_content="hm"), user("R")],
             enable_thinking=False),
    generate("a tool", [user("The weather?")], tools=[WEATHER]),
    generate("tools and system", [system("Use tools."), user("Search.")],
             tools=[WEATHER, SEARCH, EMPTY]),
    generate("tool without parameters", HELLO, tools=[NO_PARAMETERS]),
    generate("bare tool", HELLO, tools=[BARE]),
    generate("no tools", HELLO, tools=[]),
    generate("tools none", HELLO, tools=None),
    generate("called", CALLED, tools=[WEATHER]),
    generate("called, system", [system("S."), *CALLED], tools=[WEATHER]),
    generate("called, tools gone", CALLED),
    chat("called and answered", [*CALLED, assistant("21.5 degrees.")], tools=[WEATHER]),
    generate("called, answered, asked", [*CALLED, assistant("21.5 degrees."), user("Thanks")],
             tools=[WEATHER]),
    generate("arguments as text", [user("W?"), assistant(None, tool_calls=[
        call("get_weather", "{\"place\": \"Bern\"}", "call00002")]),
        tool("rain", tool_call_id="call00002")], tools=[WEATHER]),
    generate("nested arguments", [user("S?"), assistant("Searching.", tool_calls=[
        call("search", NESTED, "abcdef123")]),
        tool("none", name="search", tool_call_id="abcdef123")], tools=[SEARCH]),
    generate("no arguments", [user("Stop"), assistant("", tool_calls=[call("stop", {}, "id1234567")]),
                              tool("", name="stop", tool_call_id="id1234567")], tools=[EMPTY]),
    generate("two calls", [user("Both"), assistant("", tool_calls=[
        call("get_weather", {"place": "A"}, "call000aa"), call("search", {"query": "q"}, "call000bb")]),
        tool("1", name="get_weather", tool_call_id="call000aa"),
        tool("2", name="search", tool_call_id="call000bb"), assistant("Done."), user("And?")],
        tools=[WEATHER, SEARCH]),
    generate("two rounds", [user("W?"), assistant("", reasoning_content="Look.", tool_calls=[
        call("get_weather", {"place": "A"}, "call000aa")]), tool("1", tool_call_id="call000aa"),
        assistant("", reasoning_content="Again.", tool_calls=[
            call("get_weather", {"place": "B"}, "call000bb")]), tool("2", tool_call_id="call000bb")],
        tools=[WEATHER], enable_thinking=True),
    generate("calls without ids", [user("W?"), assistant("", tool_calls=[
        call("get_weather", {"place": "A"})]), tool("1")], tools=[WEATHER]),
    generate("result in parts", [*CALLED[:2], tool([{"type": "text", "text": "warm"}],
                                                   name="get_weather", tool_call_id="call00001")],
             tools=[WEATHER]),
    generate("result as value", [*CALLED[:2], tool({"temp": 21.5, "sky": ["blue", None, True]},
                                                   name="get_weather", tool_call_id="call00001")],
             tools=[WEATHER]),
    generate("result without call", [user("W?"), tool("1", tool_call_id="x")]),
    generate("call last", CALLED[:2], tools=[WEATHER]),
    generate("variables", TURNS, reasoning_effort="high", model_identity="You are X.",
             builtin_tools=["browser", "python"], custom_instructions="Be kind.",
             date_string="1 Jan 2026", documents=[{"title": "T", "text": "Body"}],
             tool_choice="required", tools_in_user_message=False, keep_past_thinking=True,
             preserve_thinking=True, clear_thinking=False, system_prompt="Sys.", truncate_history=True),
    generate("other variables", [system("S."), *TURNS], reasoning_effort="low", thinking_budget=0,
             xml_tools=["{\"name\": \"x\"}"], python_tools=["def f(): pass"], tools=[SEARCH],
             response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {
                 "type": "object"}}}, json_schema={"type": "object"}, citations=True),
    generate("numbers", [user("N"), assistant("", tool_calls=[call("n", {
        "a": 1.0, "b": 1e16, "c": 1e-5, "d": -0.0, "e": 123456789012345, "f": 0.30000000000000004,
        "g": 1e100, "h": 5e-324, "i": 12345678901234567890123})]), tool("3", name="n")]),
    generate("keys", [user("K"), assistant("", tool_calls=[call("k", {
        "z": 1, "a b": {"é": "ü"}, "": "", "\"": "'", "items": 2, "get": 3})]), tool("4", name="k")]),
]


def digest(text, n):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:n]


def render(template, variables):
    """The prompt, or (kind, message) of a failure."""
    try:
        return template.render(**variables), None
    except Raised as error:
        return None, ("=", str(error))
    except Exception as error:  # whatever Python raises, the template failed
        return None, ("!", f"{type(error).__name__}: {error}")


def templates(folder):
    for file_name in sorted(os.listdir(folder)):
        if file_name.endswith(".jinja"):
            with open(os.path.join(folder, file_name), encoding="utf-8", newline="") as file:
                yield file_name[:-len(".jinja")], file.read()


def main():
    env = environment()
    with open(os.path.join(sys.argv[2], "jinja_chats.jsonl"), "w", encoding="utf-8") as out:
        for made in CHATS:
            out.write(json.dumps(made, ensure_ascii=False) + "\n")
    with open(os.path.join(sys.argv[2], "jinja.txt"), "w", encoding="utf-8") as out:
        for name, source in templates(sys.argv[1]):
            template = env.from_string(source)
            results = []
            for made in CHATS:
                text, failure = render(template, made["variables"])
                if failure is None:
                    results.append(digest(text, 16))
                else:
                    results.append("=" + digest(failure[1], 8) if failure[0] == "=" else "!")
            out.write(f"{name} {digest(source, 64)} {' '.join(results)}\n")


if __name__ == "__main__":
    main()
