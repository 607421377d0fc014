"""claude-agent-sdk, whose wheel carries the Claude Code program: a turn of /v1/messages as that
program sends it, with a home of its own and no network but the server's address."""

import asyncio
import os
import tempfile

from rig import KEY, coder, equal, main, true

LIMIT_S = 90


class Checks:
    def __init__(self):
        import claude_agent_sdk
        self.sdk = claude_agent_sdk
        self.folder = tempfile.TemporaryDirectory()
        for name in [n for n in os.environ if n.startswith(("CLAUDE", "ANTHROPIC", "AWS_"))]:
            del os.environ[name]

    def query(self, prompt, key=KEY):
        home = self.folder.name
        options = self.sdk.ClaudeAgentOptions(
            model="coder", system_prompt="Be short.", tools=[], max_turns=1, cwd=home,
            setting_sources=[],
            env={"ANTHROPIC_BASE_URL": coder.url, "ANTHROPIC_API_KEY": key, "HOME": home,
                 "CLAUDE_CONFIG_DIR": home, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                 "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "400", "DISABLE_TELEMETRY": "1",
                 "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_MAX_RETRIES": "0"})

        async def run():
            return [m async for m in self.sdk.query(prompt=prompt, options=options)]

        return asyncio.run(asyncio.wait_for(run(), LIMIT_S))

    def check_one_turn(self):
        messages = self.query("What is the capital of France? Answer with one word.")
        result = messages[-1]
        equal(type(result).__name__, "ResultMessage")
        texts = [b.text for m in messages if type(m).__name__ == "AssistantMessage"
                 for b in m.content if hasattr(b, "text")]
        true(texts and not any("API Error" in t for t in texts), texts)
        true(result.usage["output_tokens"] > 0, result.usage)


main("claude-agent-sdk", Checks)
