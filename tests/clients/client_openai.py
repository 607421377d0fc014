"""OpenAI's own client: chats, texts, tools, formats, responses and errors, as its users use it."""

import functools
import re

import rig
from rig import KEY, beside_another, coder, equal, mini, one, raises, true

ASK = [{"role": "user", "content": "Name a colour."}]
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
       "required": ["a", "b"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds two numbers.",
                                         "parameters": ADD}}


class Checks:
    def __init__(self):
        import openai
        self.openai = openai
        self.client = openai.OpenAI(base_url=mini.v1, api_key=KEY, max_retries=0)
        self.sense = None

    def coder(self):
        if self.sense is None:
            self.sense = self.openai.OpenAI(base_url=coder.v1, api_key=KEY, max_retries=0)
        return self.sense.chat.completions

    def chat(self, messages=ASK, **more):
        more.setdefault("max_tokens", 12)
        return self.client.chat.completions.create(model="mini", messages=messages, seed=7, **more)

    def check_models(self):
        equal([m.id for m in self.client.models.list()], ["mini"])

    def check_chat(self):
        a = self.chat()
        equal((a.object, a.model, a.choices[0].message.role), ("chat.completion", "mini",
                                                              "assistant"))
        equal(a.usage.total_tokens, a.usage.prompt_tokens + a.usage.completion_tokens)

    def check_streams(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        equal(text, whole.choices[0].message.content)
        equal(chunks[-1].choices, [])
        equal(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        equal(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)

    def check_streams_that_wait(self):
        client = self.openai.OpenAI(base_url=one.v1, api_key=KEY, max_retries=0)

        def chat():
            return "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
                model="one", messages=ASK, seed=7, max_tokens=12, stream=True))

        def text():
            return "".join(c.choices[0].text for c in client.completions.create(
                model="one", prompt="The friend of", max_tokens=8, temperature=0, stream=True))

        def response():
            with client.responses.stream(model="one", input="Name a colour.", temperature=0,
                                         max_output_tokens=16) as stream:
                return "".join(e.delta for e in stream if e.type == "response.output_text.delta")

        for call in (chat, text, response):
            equal(beside_another(call), call())

    def check_cached_tokens(self):
        long = [{"role": "user", "content": "The password is plain book. " * 30}]
        self.chat(long, max_tokens=1)
        again = self.chat(long, max_tokens=1)
        cached = again.usage.prompt_tokens_details.cached_tokens
        true(cached >= 64, f"{cached} tokens were cached")

    def check_seeds(self):
        a, b = (self.chat(temperature=1.5).choices[0].message.content for _ in range(2))
        equal(a, b)

    def check_n(self):
        a = self.chat(n=3, temperature=1.5)
        equal([c.index for c in a.choices], [0, 1, 2])
        true(len({c.message.content for c in a.choices}) > 1, "three answers are the same")

    def check_stop(self):
        text = self.chat(temperature=0).choices[0].message.content
        word = text[len(text) // 2:][:2]
        a = self.chat(temperature=0, stop=[word])
        equal(a.choices[0].message.content, text[:text.index(word)])
        equal(a.choices[0].finish_reason, "stop")

    def check_logprobs(self):
        for stream in (False, True):
            a = self.chat(logprobs=True, top_logprobs=3, temperature=0, stream=stream)
            parts = a if stream else [a]
            tokens = [t for p in parts for c in p.choices if c.logprobs
                      for t in c.logprobs.content]
            equal(len(tokens), 12)
            for t in tokens:
                equal(len(t.top_logprobs), 3)
                equal(t.token, t.top_logprobs[0].token, "the likeliest,")

    def check_completions_with_echo(self):
        a = self.client.completions.create(model="mini", prompt="The friend of", max_tokens=2,
                                           echo=True, logprobs=1, temperature=0)
        true(a.choices[0].text.startswith("The friend of"), a.choices[0].text)
        told = a.choices[0].logprobs
        equal(len(told.tokens), len(told.token_logprobs))
        equal(told.token_logprobs[0], None)

    def check_forced_tool(self):
        ask = [{"role": "user", "content": "What is 2 plus 3?"}]
        a = self.coder().create(model="coder", messages=ask, tools=[TOOL], temperature=0,
                                parallel_tool_calls=False, max_tokens=80,
                                tool_choice={"type": "function", "function": {"name": "add"}})
        call = a.choices[0].message.tool_calls[0]
        equal((call.function.name, rig.parsed(call.function.arguments)), ("add", {"a": 2, "b": 3}))
        equal(a.choices[0].finish_reason, "tool_calls")
        back = ask + [a.choices[0].message,
                      {"role": "tool", "tool_call_id": call.id, "content": "5"}]
        end = self.coder().create(model="coder", messages=back, tools=[TOOL], temperature=0,
                                  tool_choice="none",
                                  max_tokens=20)
        true("5" in end.choices[0].message.content, end.choices[0].message.content)

    def check_streamed_tool(self):
        self.coder()
        with self.sense.chat.completions.stream(
                model="coder", messages=[{"role": "user", "content": "What is 2 plus 3?"}],
                tools=[{**TOOL, "function": {**TOOL["function"], "strict": True}}], temperature=0,
                tool_choice="required", parallel_tool_calls=False, max_tokens=80) as stream:
            kinds = {event.type for event in stream}
            call = stream.get_final_completion().choices[0].message.tool_calls[0]
        equal(call.function.parsed_arguments, {"a": 2, "b": 3})
        true("tool_calls.function.arguments.delta" in kinds, kinds)

    def check_parsed_models(self):
        from pydantic import BaseModel

        class City(BaseModel):
            name: str
            country: str

        self.coder()
        a = self.sense.chat.completions.parse(
            model="coder", response_format=City, temperature=0, max_tokens=60,
            messages=[{"role": "user", "content": "The capital of France, as JSON."}])
        equal(a.choices[0].message.parsed, City(name="Paris", country="France"))

    def check_json_schema_by_hand(self):
        schema = {"type": "object", "properties": {"kind": {"enum": ["red", "blue"]}},
                  "required": ["kind"], "additionalProperties": False}
        a = self.chat(response_format={"type": "json_schema", "json_schema": {
            "name": "answer", "schema": schema, "strict": True}}, max_tokens=200)
        true(rig.parsed(a.choices[0].message.content)["kind"] in ("red", "blue"),
             a.choices[0].message.content)

    def check_tools_beside_a_format(self):
        from pydantic import BaseModel

        class Sum(BaseModel):
            total: int

        self.coder()
        ask = [{"role": "user", "content": "What is 2 plus 3? Use the tool."}]
        parse = functools.partial(self.sense.chat.completions.parse, model="coder", temperature=0,
                                  tools=[{**TOOL, "function": {**TOOL["function"], "strict": True}}],
                                  response_format=Sum, max_tokens=80)
        call = parse(messages=ask).choices[0].message.tool_calls[0]
        equal(call.function.parsed_arguments, {"a": 2, "b": 3})
        end = parse(messages=ask, tool_choice="none").choices[0].message
        true(isinstance(end.parsed, Sum), end)

    def check_custom_tools(self):
        about = {"name": "run_sql", "description": "Runs a SQL query, which is the input."}
        grammar = {"syntax": "regex", "definition": "SELECT [a-z_()*, ]+ FROM [a-z]+;"}
        ask = [{"role": "user", "content": "How many rows has the table users? Use run_sql."}]
        a = self.coder().create(
            model="coder", messages=ask, temperature=0, max_tokens=80,
            tools=[{"type": "custom", "custom": {**about, "format": {"type": "grammar",
                                                                     "grammar": grammar}}}])
        call = a.choices[0].message.tool_calls[0]
        equal((call.type, call.custom.name), ("custom", "run_sql"))
        true(re.fullmatch(grammar["definition"], call.custom.input), call.custom.input)
        tool = {"type": "custom", **about, "format": {"type": "grammar", **grammar}}
        b = self.sense.responses.create(model="coder", input=ask, temperature=0, tools=[tool],
                                        max_output_tokens=80, tool_choice={"type": "custom",
                                                                           "name": "run_sql"})
        equal((b.output[0].type, b.output[0].input), ("custom_tool_call", call.custom.input))
        n = self.sense.responses.input_tokens.count(model="coder", input=ask, tools=[tool])
        equal(n.input_tokens, b.usage.input_tokens)
        back = ask + b.output + [{"type": "custom_tool_call_output", "output": "42",
                                  "call_id": b.output[0].call_id}]
        with self.sense.responses.stream(model="coder", input=back, tools=[tool], temperature=0,
                                         tool_choice="none", max_output_tokens=40) as stream:
            kinds = {event.type for event in stream}
        true("response.completed" in kinds or "response.incomplete" in kinds, kinds)

    def check_responses(self):
        a = self.client.responses.create(model="mini", input="Name a colour.", temperature=0,
                                         instructions="Be short.", max_output_tokens=16)
        equal((a.object, a.output[0].type), ("response", "message"))
        true(a.output_text, "no text")
        with self.client.responses.stream(model="mini", input="Name a colour.", temperature=0,
                                          instructions="Be short.", max_output_tokens=16) as s:
            text = "".join(e.delta for e in s if e.type == "response.output_text.delta")
        equal(text, a.output_text)
        equal(a.usage.total_tokens, a.usage.input_tokens + a.usage.output_tokens)

    def check_responses_with_tools_and_formats(self):
        from pydantic import BaseModel

        class Sum(BaseModel):
            total: int

        self.coder()
        a = self.sense.responses.create(
            model="coder", input="What is 2 plus 3?", temperature=0, max_output_tokens=80,
            tools=[{"type": "function", "name": "add", "parameters": ADD, "strict": True}],
            tool_choice={"type": "function", "name": "add"}, parallel_tool_calls=False)
        call = next(o for o in a.output if o.type == "function_call")
        equal(rig.parsed(call.arguments), {"a": 2, "b": 3})
        b = self.sense.responses.parse(model="coder", input="What is 2 plus 3? As JSON.",
                                       text_format=Sum, temperature=0, max_output_tokens=60)
        equal(b.output_parsed, Sum(total=5))

    def check_wrong_key(self):
        other = self.openai.OpenAI(base_url=mini.v1, api_key="wrong", max_retries=0)
        e = raises(self.openai.AuthenticationError, lambda: other.models.list())
        equal(e.status_code, 401)

    def check_context_overflow(self):
        e = raises(self.openai.BadRequestError,
                   lambda: self.chat([{"role": "user", "content": "word " * 20000}]))
        equal(e.body["type"], "exceed_context_size_error")
        true("maximum context length is 8192 tokens" in e.message, e.message)  # what agents compact on

    def check_bad_fields(self):
        e = raises(self.openai.BadRequestError, lambda: self.chat(temperature=-1))
        equal(e.param, "temperature")

    def check_asynchronous_and_cancelled(self):
        import asyncio

        async def run():
            async with self.openai.AsyncOpenAI(base_url=mini.v1, api_key=KEY) as client:
                both = await asyncio.gather(*[client.chat.completions.create(
                    model="mini", messages=ASK, max_tokens=8, temperature=0) for _ in range(2)])
                stream = await client.chat.completions.create(
                    model="mini", messages=ASK, max_tokens=4000, stream=True,
                    extra_body={"ignore_eos": True})
                async for _ in stream:
                    break
                await stream.close()
                return [a.choices[0].message.content for a in both]

        a, b = asyncio.run(run())
        equal(a, b)
        rig.until(lambda: mini.metric("pith_answers_running") == 0, "the request ends")


rig.main("openai", Checks)
