"""llm, Simon Willison's command: a model of its configuration, prompts, chats, schemas, tools."""

import json
import os
import subprocess
import sys
import tempfile

from rig import KEY, coder, equal, main, mini, parsed, true


class Checks:
    def __init__(self):
        import llm  # noqa: F401 - whether it is there
        self.folder = tempfile.TemporaryDirectory()
        self.env = {**os.environ, "LLM_USER_PATH": self.folder.name, "HOME": self.folder.name}
        self.models = []
        with open(os.path.join(self.folder.name, "keys.json"), "w", encoding="utf-8") as f:
            json.dump({"pith": KEY, "wrong": "wrong"}, f)

    def add(self, name, server, key="pith"):
        self.models = [m for m in self.models if m["model_id"] != name]
        self.models.append({"model_id": name, "model_name": name, "api_base": server.v1,
                            "api_key_name": key, "supports_tools": True, "supports_schema": True})
        path = os.path.join(self.folder.name, "extra-openai-models.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(self.models, f)  # which is YAML, too

    def llm(self, *words):
        done = subprocess.run([sys.executable, "-m", "llm", *words], env=self.env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        return done.returncode, done.stdout.strip(), done.stderr

    def good(self, *words):
        code, out, err = self.llm(*words)
        equal(code, 0, err)
        return out

    def check_prompt_and_stream(self):
        self.add("mini", mini)
        ask = ("-m", "mini", "-o", "seed", "7", "-o", "max_tokens", "12", "-s", "Be short.",
               "Name a colour.")
        whole = self.good(*ask, "--no-stream")
        true(whole, "no text")
        equal(self.good(*ask), whole)

    def check_conversation_and_logged_usage(self):
        self.add("mini", mini)
        self.good("-m", "mini", "-o", "max_tokens", "8", "Hello there.")
        self.good("-c", "-o", "max_tokens", "8", "And again.")
        logs = json.loads(self.good("logs", "list", "--json", "-n", "1"))
        true(logs[0]["input_tokens"] > 0 and logs[0]["output_tokens"] > 0, logs)

    def check_schema(self):
        self.add("coder", coder)
        out = self.good("-m", "coder", "-o", "temperature", "0", "-o", "max_tokens", "60",
                        "--schema", "name, country", "The capital of France, as JSON.")
        equal(parsed(out)["name"], "Paris")

    def check_tool_from_the_command_line(self):
        self.add("coder", coder)
        # So small a model may call again and again: what counts is that the first call was right.
        _, out, err = self.llm("-m", "coder", "-o", "temperature", "0", "-o", "max_tokens", "60",
                               "--functions", "def add(a: int, b: int) -> int:\n"
                               "    'Adds two numbers.'\n    return a + b\n", "--chain-limit", "2",
                               "--tools-debug", "What is 2 plus 3? Call add.")
        true("Tool call: add({'a': 2, 'b': 3})" in err, out + err)

    def check_wrong_key(self):
        self.add("mini", mini, key="wrong")
        code, _, err = self.llm("-m", "mini", "Hi")
        equal(code, 1)
        true("401" in err, err)


main("llm", Checks)
