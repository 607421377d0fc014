"""litellm, the way by which aider and many agents reach a model: its openai, anthropic and text
routes, its own error classes, and what it makes of usage."""

from rig import KEY, coder, equal, main, mini, parsed, raises, true

ASK = [{"role": "user", "content": "Name a colour."}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"]}}}


class Checks:
    def __init__(self):
        import litellm
        litellm.suppress_debug_info = True
        self.litellm = litellm

    def chat(self, messages=ASK, **more):
        more = {"model": "openai/mini", "api_base": mini.v1, "api_key": KEY, "max_tokens": 12,
                "num_retries": 0, "seed": 7, **more}
        return self.litellm.completion(messages=messages, **more)

    def check_chat_and_stream(self):
        whole = self.chat()
        parts = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        equal(text, whole.choices[0].message.content)
        built = self.litellm.stream_chunk_builder(parts, messages=ASK)
        equal(built.usage.total_tokens, whole.usage.total_tokens)

    def check_cached_tokens(self):
        long = [{"role": "user", "content": "The password is plain book. " * 30}]
        self.chat(long, max_tokens=1)
        cached = self.chat(long, max_tokens=1).usage.prompt_tokens_details.cached_tokens
        true(cached >= 64, f"{cached} tokens were cached")

    def check_anthropic_route(self):
        a = self.litellm.completion(model="anthropic/mini", api_base=mini.url, api_key=KEY,
                                    messages=ASK, max_tokens=8, num_retries=0)
        true(a.choices[0].message.content, "no text")
        equal(a.usage.completion_tokens, 8)

    def check_text_completion(self):
        a = self.litellm.text_completion(model="text-completion-openai/mini", api_base=mini.v1,
                                         api_key=KEY, prompt="The friend of", max_tokens=4)
        true(a.choices[0].text, "no text")

    def check_forced_tool(self):
        for stream in (False, True):
            a = self.chat([{"role": "user", "content": "What is 2 plus 3?"}], model="openai/coder",
                          api_base=coder.v1, tools=[TOOL], max_tokens=80, temperature=0,
                          parallel_tool_calls=False, stream=stream,
                          tool_choice={"type": "function", "function": {"name": "add"}})
            if stream:
                a = self.litellm.stream_chunk_builder(list(a))
            call = a.choices[0].message.tool_calls[0].function
            equal((call.name, parsed(call.arguments)), ("add", {"a": 2, "b": 3}))

    def check_parsed_models(self):
        from pydantic import BaseModel

        class City(BaseModel):
            name: str
            country: str

        a = self.chat([{"role": "user", "content": "The capital of France, as JSON."}],
                      model="openai/coder", api_base=coder.v1, temperature=0, max_tokens=60,
                      response_format=City)
        equal(City.model_validate_json(a.choices[0].message.content).name, "Paris")

    def check_wrong_key(self):
        raises(self.litellm.AuthenticationError, lambda: self.chat(api_key="wrong"))

    def check_context_overflow(self):
        """It knows this error by its words, and agents compact when they see its class."""
        long = [{"role": "user", "content": "word " * 20000}]
        raises(self.litellm.ContextWindowExceededError, lambda: self.chat(long))
        raises(self.litellm.ContextWindowExceededError, lambda: self.chat(
            long, model="anthropic/mini", api_base=mini.url, seed=None))


main("litellm", Checks)
