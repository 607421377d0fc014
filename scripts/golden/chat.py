#!/usr/bin/env python3
"""Writes tests/golden/chat.txt: conversations as the published chat templates render them.

    python3 scripts/golden/chat.py TEMPLATE_DIR > tests/golden/chat.txt

TEMPLATE_DIR holds one file per row of the table below, NAME.jinja: the "chat_template" of the
named model's tokenizer_config.json. The templates themselves are not part of this repository.
Jinja2 renders them with the settings that the transformers library uses.

Format of the output, one case after the other:

    case NAME FLAGS          FLAGS: the sum of PITH_CHAT_ values
    ROLE |CONTENT|           one line per message; backslash and line end are written \\\\ and \\n
    = |EXPECTED|             without the BOS that the template starts with
"""
import os
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

GENERATE, NO_THINKING = 1, 2
BOTH, ALWAYS = (True, False), (True,)  # ALWAYS: the template opens the answer unasked
PLAIN = ("", "")
LLAMA2 = ("<s>", "</s>")
LLAMA3 = ("<|begin_of_text|>", "")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")

# name: published with, (bos, eos), whether the answer is opened when asked for or always
TEMPLATES = {
    "chatml": ("teknium/OpenHermes-2.5-Mistral-7B", PLAIN, BOTH),
    "qwen2": ("Qwen/Qwen2-7B-Instruct", PLAIN, BOTH),
    "qwen2.5": ("Qwen/Qwen2.5-7B-Instruct", PLAIN, BOTH),
    "qwen3": ("Qwen/Qwen3-0.6B", PLAIN, BOTH),
    "qwq": ("Qwen/QwQ-32B", PLAIN, BOTH),
    "smollm2": ("HuggingFaceTB/SmolLM2-1.7B-Instruct", PLAIN, BOTH),
    "llama2": ("meta-llama/Llama-2-7b-chat-hf", LLAMA2, BOTH),
    "llama3": ("meta-llama/Meta-Llama-3-8B-Instruct", LLAMA3, ALWAYS),
    "llama3.1": ("meta-llama/Llama-3.1-8B-Instruct", LLAMA3, BOTH),
    "mistral": ("mistralai/Mistral-7B-Instruct-v0.2 (2023)", LLAMA2, BOTH),
    "mistral-v1": ("mistralai/Mistral-7B-Instruct-v0.2", LLAMA2, BOTH),
    "mistral-v3": ("mistralai/Mistral-Large-Instruct-2407", LLAMA2, BOTH),
    "mistral-v3-tekken": ("mistralai/Mistral-Nemo-Instruct-2407", LLAMA2, BOTH),
    "mistral-v7": ("mistralai/Mistral-Large-Instruct-2411", LLAMA2, BOTH),
    "mistral-v7-tekken": ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", LLAMA2, BOTH),
    "gemma": ("google/gemma-3-1b-it", ("<bos>", "<eos>"), BOTH),
    "phi3": ("microsoft/Phi-3.5-mini-instruct", ("", "<|endoftext|>"), BOTH),
    "phi4": ("microsoft/phi-4", PLAIN, ALWAYS),
    "zephyr": ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", LLAMA2, BOTH),
    "deepseek": ("deepseek-ai/DeepSeek-V3", DEEPSEEK, BOTH),
    "deepseek-r1": ("deepseek-ai/DeepSeek-R1", DEEPSEEK, BOTH),
    "deepseek-r1-2501": ("deepseek-ai/DeepSeek-R1 (January 2025)", DEEPSEEK, BOTH),
    "deepseek-v2": ("deepseek-ai/DeepSeek-V2-Lite-Chat", DEEPSEEK, BOTH),
}
THINKS = ("qwen3",)  # their templates know enable_thinking
# Without a system message they add one about themselves and the date, which Pith leaves out.
HAS_SYSTEM = ("mistral-v7-tekken",)

SYSTEM = ("system", "You are terse. ")
ASK = ("user", " Hello\n")
ANSWER = ("assistant", "Hi there ")
WHO = ("user", "Who are you?")
THINK = ("assistant", "<think>\nhm\n</think>\n\nA model.")
CONVERSATIONS = (
    (ASK,),
    (SYSTEM, ASK),
    (ASK, ANSWER, WHO),
    (SYSTEM, ASK, ANSWER, WHO),
    (WHO, THINK, ASK),
    (ASK, ANSWER),
    (SYSTEM, ASK, ANSWER, WHO, THINK),
)


def raise_exception(message):
    raise jinja2.TemplateError(message)


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda text: "2026-01-01"
    for name, (_, (bos, eos), modes) in TEMPLATES.items():
        path = os.path.join(sys.argv[1], name + ".jinja")
        with open(path, encoding="utf-8") as file:
            source = file.read()
        if name == "llama3.1":  # the date that the template falls back to
            source = source.replace("strftime_now is defined", "false")
        template = env.from_string(source)
        for messages in CONVERSATIONS:
            if name in HAS_SYSTEM and messages[0][0] != "system":
                continue
            if modes == ALWAYS and messages[-1][0] == "assistant":
                continue
            for generate in modes:
                for thinking in (True, False) if name in THINKS and generate else (True,):
                    try:
                        text = template.render(
                            messages=[dict(role=r, content=c) for r, c in messages],
                            add_generation_prompt=generate, enable_thinking=thinking,
                            bos_token=bos, eos_token=eos)
                    except jinja2.TemplateError as error:
                        print(f"{name}: {error}", file=sys.stderr)  # it takes no such conversation
                        continue
                    text = text[len(bos):] if bos and text.startswith(bos) else text
                    flags = GENERATE * generate + NO_THINKING * (not thinking)
                    print(f"case {name} {flags}")
                    for role, content in messages:
                        print(f"{role} |{escape(content)}|")
                    print(f"= |{escape(text)}|")


if __name__ == "__main__":
    main()
