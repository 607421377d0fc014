"""smolagents: its model class, and an agent that calls a tool and ends with an answer."""

from rig import KEY, coder, equal, main, mini, true


class Checks:
    def __init__(self):
        import smolagents
        self.smol = smolagents

    def model(self, server, **more):
        return self.smol.OpenAIModel(model_id="a-model", api_base=server.v1, api_key=KEY,
                                     temperature=0, **{"max_tokens": 120, **more})

    def check_generate_and_stream(self):
        ask = [self.smol.ChatMessage(role="user", content=[{"type": "text",
                                                            "text": "Name a colour."}])]
        whole = self.model(mini, max_tokens=12).generate(ask)
        parts = list(self.model(mini, max_tokens=12).generate_stream(ask))
        equal("".join(p.content or "" for p in parts), whole.content)
        equal(whole.token_usage.output_tokens, parts[-1].token_usage.output_tokens)

    def check_structured_output(self):
        ask = [{"role": "user", "content": "The capital of France, as JSON."}]
        schema = {"type": "object", "properties": {"name": {"type": "string"}},
                  "required": ["name"], "additionalProperties": False}
        a = self.model(coder).generate(ask, response_format={
            "type": "json_schema", "json_schema": {"name": "city", "schema": schema}})
        true("Paris" in a.content, a.content)

    def check_agent_with_a_tool(self):
        called = []

        class Secret(self.smol.Tool):
            name, description = "secret_number", "Returns the secret number."
            inputs, output_type = {}, "integer"

            def forward(self):
                called.append(1)
                return 17

        agent = self.smol.ToolCallingAgent(tools=[Secret()], model=self.model(coder), max_steps=2,
                                           verbosity_level=0)
        agent.run("Call secret_number, then give the number as final answer.")
        true(called, "the tool was not called")
        true(agent.monitor.get_total_token_counts().output_tokens > 0, "no usage was counted")


main("smolagents", Checks)
