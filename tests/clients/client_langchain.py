"""langchain-openai: invoke, stream, bound tools, structured output by schema and by tool, batches
and token counts."""

from rig import KEY, coder, equal, main, mini, raises, true


class Checks:
    def __init__(self):
        import langchain_openai
        self.langchain = langchain_openai

    def chat(self, server=mini, **more):
        more = {"model": "mini", "base_url": server.v1, "api_key": KEY, "max_retries": 0,
                "max_tokens": 12, "seed": 7, **more}
        return self.langchain.ChatOpenAI(**more)

    def check_invoke_and_stream(self):
        whole = self.chat().invoke("Name a colour.")
        parts = list(self.chat(stream_usage=True).stream("Name a colour."))
        equal("".join(p.content for p in parts), whole.content)
        usage = next(p.usage_metadata for p in parts if p.usage_metadata)
        equal(usage["total_tokens"], whole.usage_metadata["total_tokens"])

    def check_batches(self):
        answers = self.chat(temperature=0).batch(["Name a colour.", "Name a colour."])
        equal(answers[0].content, answers[1].content)

    def check_logprobs_and_stop(self):
        a = self.chat(logprobs=True, top_logprobs=2).invoke("Name a colour.", stop=["zzz"])
        equal(len(a.response_metadata["logprobs"]["content"]), a.usage_metadata["output_tokens"])

    def check_responses_api(self):
        a = self.chat(use_responses_api=True, seed=None, max_tokens=16).invoke("Name a colour.")
        true(a.text, "no text")

    def check_forced_tool_and_its_result(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool

        @tool
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        model = self.chat(coder, temperature=0, max_tokens=80)
        ask = [HumanMessage("What is 2 plus 3?")]
        a = model.bind_tools([add], tool_choice="add", parallel_tool_calls=False).invoke(ask)
        call = a.tool_calls[0]
        equal((call["name"], call["args"]), ("add", {"a": 2, "b": 3}))
        result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
        end = model.invoke(ask + [a, result], max_tokens=20)
        true("5" in end.content, end.content)

    def check_structured_output(self):
        from pydantic import BaseModel, Field

        class City(BaseModel):
            """A city."""
            name: str = Field(description="name of the city")
            country: str

        for method in ("json_schema", "function_calling"):
            model = self.chat(coder, temperature=0, max_tokens=80)
            a = model.with_structured_output(City, method=method).invoke(
                "The capital of France, as JSON.")
            equal((type(a), a.name), (City, "Paris"), method)

    def check_wrong_key(self):
        import openai
        raises(openai.AuthenticationError, lambda: self.chat(api_key="wrong").invoke("Hi"))

    def check_context_overflow(self):
        import openai
        e = raises(openai.BadRequestError, lambda: self.chat().invoke("word " * 20000))
        equal(e.status_code, 400)


main("langchain-openai", Checks)
