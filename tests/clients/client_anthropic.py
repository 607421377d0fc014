"""Anthropic's own client: messages, streams, tools, formats, counting tokens and errors."""

from rig import KEY, beside_another, coder, equal, main, mini, one, raises, true

ASK = [{"role": "user", "content": "Name a colour."}]
COLD = {"temperature": 0}  # which this client's own fields no longer have
ADD = {"name": "add", "description": "Adds two numbers.",
       "input_schema": {"type": "object", "required": ["a", "b"],
                        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}


class Checks:
    def __init__(self):
        import anthropic
        self.anthropic = anthropic
        self.client = anthropic.Anthropic(base_url=mini.url, api_key=KEY, max_retries=0)
        self.sense = None

    def coder(self):
        if self.sense is None:
            self.sense = self.anthropic.Anthropic(base_url=coder.url, api_key=KEY, max_retries=0)
        return self.sense.messages

    def make(self, messages=ASK, **more):
        more = {"max_tokens": 12, "model": "mini", "system": "Be short.", **more}
        return self.client.messages.create(messages=messages, **more)

    def check_messages(self):
        a = self.make()
        equal((a.type, a.role, a.model, a.content[0].type), ("message", "assistant", "mini",
                                                             "text"))
        true(a.stop_reason in ("end_turn", "max_tokens"), a.stop_reason)
        equal(a.usage.output_tokens <= 12, True)

    def check_streams(self):
        whole = self.make(extra_body=COLD)
        with self.client.messages.stream(model="mini", max_tokens=12, messages=ASK, extra_body=COLD,
                                         system="Be short.") as stream:
            text = "".join(stream.text_stream)
            end = stream.get_final_message()
        equal(text, whole.content[0].text)
        equal(end.content[0].text, text)
        equal((end.stop_reason, end.usage.output_tokens),
              (whole.stop_reason, whole.usage.output_tokens))

    def check_streams_that_wait(self):
        client = self.anthropic.Anthropic(base_url=one.url, api_key=KEY, max_retries=0)

        def call():
            with client.messages.stream(model="one", max_tokens=12, messages=ASK,
                                        extra_body=COLD) as stream:
                return "".join(stream.text_stream)

        equal(beside_another(call), call())

    def check_stop_sequences(self):
        text = self.make(extra_body=COLD).content[0].text
        word = text[len(text) // 2:][:2]
        a = self.make(extra_body=COLD, stop_sequences=[word])
        equal((a.stop_reason, a.stop_sequence), ("stop_sequence", word))

    def check_counting_tokens(self):
        counted = self.client.messages.count_tokens(model="mini", messages=ASK, system="Be short.",
                                                    tools=[ADD]).input_tokens
        u = self.make(tools=[ADD], max_tokens=1).usage
        equal(counted, u.input_tokens + u.cache_read_input_tokens)

    def check_cached_tokens(self):
        long = [{"role": "user", "content": "The password is plain book. " * 30}]
        n = self.client.messages.count_tokens(model="mini", messages=long).input_tokens
        first, again = (self.make(long, max_tokens=1, system=[]).usage for _ in range(2))
        equal(first.input_tokens + first.cache_read_input_tokens, n)
        true(again.cache_read_input_tokens >= 64, f"{again.cache_read_input_tokens} were cached")
        equal(again.input_tokens + again.cache_read_input_tokens, n)

    def check_forced_tool_and_its_result(self):
        ask = [{"role": "user", "content": "What is 2 plus 3?"}]
        a = self.coder().create(model="coder", messages=ask, tools=[ADD], extra_body=COLD,
                                max_tokens=80, tool_choice={"type": "tool", "name": "add",
                                                            "disable_parallel_tool_use": True})
        use = a.content[-1]
        equal((a.stop_reason, use.name, use.input), ("tool_use", "add", {"a": 2, "b": 3}))
        back = ask + [{"role": "assistant", "content": a.content},
                      {"role": "user", "content": [
                          {"type": "tool_result", "tool_use_id": use.id,
                           "content": [{"type": "text", "text": "5"}]},
                          {"type": "text", "text": "Say it in words."}]}]
        end = self.coder().create(model="coder", messages=back, tools=[ADD], extra_body=COLD,
                                  max_tokens=20, tool_choice={"type": "none"})
        true("5" in end.content[0].text or "five" in end.content[0].text.lower(), end.content)

    def check_streamed_tool(self):
        with self.coder().stream(
                model="coder", messages=[{"role": "user", "content": "What is 2 plus 3?"}],
                tools=[ADD], extra_body=COLD, max_tokens=80,
                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
            parts = [e.partial_json for e in stream if e.type == "input_json"]
            use = stream.get_final_message().content[-1]
        equal(use.input, {"a": 2, "b": 3})
        true(len(parts) > 1, f"the arguments came in {len(parts)} part")

    def check_parsed_models(self):
        from pydantic import BaseModel

        class City(BaseModel):
            name: str
            country: str

        a = self.coder().parse(
            model="coder", output_format=City, extra_body=COLD, max_tokens=60,
            messages=[{"role": "user", "content": "The capital of France, as JSON."}])
        equal(a.parsed_output, City(name="Paris", country="France"))

    def check_models(self):
        equal([m.id for m in self.client.models.list()], ["mini"])

    def check_wrong_key(self):
        other = self.anthropic.Anthropic(base_url=mini.url, api_key="wrong", max_retries=0)
        e = raises(self.anthropic.AuthenticationError,
                   lambda: other.messages.create(model="mini", max_tokens=1, messages=ASK))
        equal(e.body["error"]["type"], "authentication_error")

    def check_context_overflow(self):
        e = raises(self.anthropic.BadRequestError,
                   lambda: self.make([{"role": "user", "content": "word " * 20000}]))
        equal(e.body["error"]["type"], "invalid_request_error")
        true("prompt is too long: " in str(e) and " tokens > " in str(e), e)  # what agents compact on

    def check_bad_fields(self):
        raises(self.anthropic.BadRequestError, lambda: self.make(max_tokens=0))


main("anthropic", Checks)
