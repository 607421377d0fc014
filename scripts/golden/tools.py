#!/usr/bin/env python3
"""Writes tests/golden/tools.jsonl: what each chat template writes for an answer with calls of
tools, which is what its model writes, and what that says.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2==3.1.6
    /tmp/venv/bin/python scripts/golden/tools.py TEMPLATE_DIR tests/golden

TEMPLATE_DIR holds NAME.jinja, templates of real models, which are not part of this repository. A
line has the template's name, the form (by the table below, which was made by reading what the
templates write), the text, whether the prompt ends within reasoning, and what is in the text.
"""
import json
import os
import sys

import jinja  # the sandbox of scripts/golden/jinja.py

FORMS = {
    "hermes": ["Bielik-11B-v3.0-Instruct", "MiMo-VL", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
               "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-QwQ-32B",
               "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen2.5-Coder-1.5B-Instruct.gguf",
               "Reka-Edge", "ibm-granite-granite-4.0", "ibm-granite-granite-4.1"],
    "qwen-coder": ["Qwen3-Coder", "Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
                   "StepFun3.5-Flash"],
    "llama3": ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
               "meta-llama-Llama-3.3-70B-Instruct"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407"],
    "mistral-args": ["Mistral-Small-3.2-24B-Instruct-2506",
                     "mistralai-Ministral-3-14B-Reasoning-2512",
                     "unsloth-mistral-Devstral-Small-2507"],
    "gpt-oss": ["openai-gpt-oss-120b"],
    "deepseek": ["deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
                 "llama-cpp-deepseek-r1"],
    "dsml": ["deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4",
             "deepseek-ai-DeepSeek-V4-Flash-0731"],
    "kimi": ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    "glm": ["GLM-4.6", "GLM-4.7-Flash", "Spark2.5", "inclusionai-ling-3.0-flash",
            "poolside-Laguna-S-2.1", "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2"],
    "seed": ["ByteDance-Seed-OSS"],
    "minimax": ["MiniMax-M2"],
    "minicpm": ["openbmb-MiniCPM5-1B"],
    "functionary": ["meetkai-functionary-medium-v3.1"],
    "solar": ["upstage-Solar-Open-100B"],
    "cohere": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "list": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5", "MiniMax-M1"],
    "nemotron": ["NVIDIA-Nemotron-Nano-v2"],
    "apertus": ["Apertus-8B-Instruct"],
}
ENDS = ["<|im_end|>", "</s>", "<|eot_id|>", "<|eom_id|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<seed:eos>", "[e~[", "<|END_OF_TURN_TOKEN|>", "<|role_end|>", "</assistant>", "<|endoftext|>",
        "<end_of_sentence>", "<SPECIAL_12>", "<sep>", "<|end_of_text|>", "<|assistant_end|>", "\n<|end|>"]
THINK_OPEN = ["<think>", "<seed:think>", "<|START_THINKING|>", "Here are my reasoning steps:", "[THINK]"]
PLAIN = {"city": "Paris", "days": 3}
HARD = {"city": "Paris \"x\" {\u00e9</b>\n\\ [2", "days": -3, "list": [1, {"a": [True, None, "]}"]}]}
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "W", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "c"},
        "days": {"type": "integer", "description": "d"},
        "list": {"type": "array", "description": "l"}}, "required": ["city"]}}}


def render(template, messages, **more):
    return template.render(messages=messages, tools=[TOOL], bos_token="<s>", eos_token="</s>", **more)


def answer(args, n, content, reasoning):
    calls = [{"id": "call0000%d" % i, "type": "function",
              "function": {"name": "get_weather", "arguments": args}} for i in range(n)]
    a = {"role": "assistant", "content": content, "tool_calls": calls}
    if reasoning:
        a["reasoning_content"] = a["reasoning"] = a["thinking"] = "REASON"
    return a


def try_render(template, question, args, n):
    """The first way of giving the answer that the template takes."""
    last = None
    for content, reasoning in (("CONTENT", True), ("", True), ("CONTENT", False), ("", False)):
        for messages in ([question, answer(args, n, content, reasoning)],):
            try:
                return render(template, messages, add_generation_prompt=False)
            except Exception as error:  # noqa: BLE001 - whatever a template makes of it
                last = error
    raise last


def line(name, form, template, args, n):
    question = {"role": "user", "content": "QUESTION"}
    full = try_render(template, question, args, n).rsplit("QUESTION", 1)[1]
    prompt = render(template, [question], add_generation_prompt=True, enable_thinking=True,
                    thinking=True).rsplit("QUESTION", 1)[1]
    same = len(os.path.commonprefix([full, prompt]))
    while 0 < same < len(prompt) and full[same - 1] not in ">\n]:":
        same -= 1
    text, before = full[same:], full[:same]
    end = min([text.find(e) for e in ENDS if e in text] + [len(text)])
    if name == "NVIDIA-Nemotron-Nano-v2":  # a second message has the calls
        text = text[text.index("<TOOLCALL>"):]
        end = text.index("<SPECIAL_12>")
    if form == "gpt-oss":
        end = len(text)
    if form == "solar":
        text = text[text.index("<|tool_calls|>"):]
        end = len(text)
    text = text[:end]
    return {"template": name, "form": form, "text": text,
            "thinking": text.startswith("REASON") or text.startswith("</think>") and form != "dsml" or
            "REASON" in text and any(before.rstrip().endswith(t) for t in THINK_OPEN),
            "content": "CONTENT" if "CONTENT" in text and form != "gpt-oss" else "",
            "reasoning": "CONTENT" if form == "gpt-oss" and "CONTENT" in text
            else "REASON" if "REASON" in text else "",
            "calls": text.count("get_weather"), "arguments": args}


def main():
    env = jinja.environment()
    lines = []
    for form, names in FORMS.items():
        for name in names:
            with open(os.path.join(sys.argv[1], name + ".jinja"), encoding="utf-8") as file:
                template = env.from_string(file.read())
            for args in (PLAIN, HARD):
                for n in (1, 2):
                    try:
                        made = line(name, form, template, args, n)
                        if "{'a'" in made["text"]:  # written as Python writes lists: no JSON
                            some = {k: v for k, v in args.items() if k != "list"}
                            made = line(name, form, template, some, n)
                        lines.append(made)
                    except Exception as error:  # noqa: BLE001
                        print(name, n, "left out:", error)
    with open(os.path.join(sys.argv[2], "tools.jsonl"), "w", encoding="utf-8") as file:
        for x in lines:
            file.write(json.dumps(x, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
