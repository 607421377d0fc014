"""What belongs to other models in llama-server's tests, and what is not ours.

Run with a folder of copied tests it changes them there; with --files it prints those that are run.
A change whose old text is gone is an error, so a newer llama.cpp shows what moved.
"""
import pathlib
import sys

FILES = """basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift
ignore_eos infill kv_keep_only_active metrics security slot_save template tokenize tool_call"""

# Texts of tinyllamas: see text_of_model in relations.py.
TEXTS = {
    "(going|bed)+", "(princesses|everyone|kids|Anna|forest)+", "But she couldn't",
    "(Suddenly)+|\\{ \" Sarax.", "^ blue", "(Aside|she|felter|alonger)+", "Whillicter",
    "(Suddenly)+", "(Whiskers|Flana)+", "(Jack|said)+", "(little|girl)+",
    "(Ann|small|shiny|Daddy|Jimmy)+", "(Dad|excited|park|Jimmy)+",
}

NO_B = ('.startswith("b")', '.startswith("pith-")')  # the program's name
WHOLE = ("server.n_ctx / server.n_slots", "server.n_ctx")  # a request may take all of the memory

CHANGES = {
    "basic": [WHOLE],
    "chat_completion": [
        NO_B, ("server.n_ctx // server.n_slots", "server.n_ctx"),
        # Counts of their tokens: what repeats is found again, whatever its length.
        ('("1 2 3 4 5 6", 77, 0),', '("1 2 3 4 5 6 " * 25, PROMPT_TOKENS, 0),'),
        ('("1 2 3 4 5 6", 77, 76),', '("1 2 3 4 5 6 " * 25, PROMPT_TOKENS, 1),'),
        ('("1 2 3 4 5 9", 77, 51),', '("1 2 3 4 5 6 " * 24 + "9", PROMPT_TOKENS, 1),'),
        ('("1 2 3 9 9 9", 77, 47),', '("1 2 3 4 5 6 " * 15 + "9 9", PROMPT_TOKENS, 1),'),
        ('["cached_tokens"] == n_cache', '["cached_tokens"] >= 64 * n_cache'),
        # Their "__verbose" is our /apply-template; the text of a prompt begins with their <s>.
        ('    assert "__verbose" in res.body\n    assert res.body["__verbose"]["prompt"]',
         '    assert applied()'),
        ('== "<s> <|start', '== "<|start'),
        # Theirs ends a text where ours may end it earlier: another model.
        ('"max_tokens": max_tokens,\n',
         '"max_tokens": max_tokens,\n        "ignore_eos": True,\n'),
    ],
    "completion": [
        NO_B,
        ('"n_predict": n_predict,\n        "prompt": prompt,',
         '"n_predict": n_predict,\n        "ignore_eos": True,\n        "prompt": prompt,'),
        ('["prompt"] == "<s> " + prompt', '["prompt"] == prompt'),
        ('            assert "adaptive_target" in data["generation_settings"]\n', ""),
        ('            assert "adaptive_decay" in data["generation_settings"]\n', ""),
        ('"I believe the meaning of life is"*32', '"I believe the meaning of life is"*128'),
        ('{"prompt": prompt, "n_predict": n_predict}',
         '{"prompt": prompt, "n_predict": n_predict, "ignore_eos": True}'),
        ('timings["prompt_n"] + timings["cache_n"] == n_prompt',
         'PROMPT_TOKENS == timings["prompt_n"] + timings["cache_n"]'),
        ('"n_predict": n_predict,\n            },\n        )',
         '"n_predict": n_predict,\n                "ignore_eos": True,\n            },\n        )'),
    ],
    "ctx_shift": [
        ('"prompt": LONG_TEXT', '"prompt": LONG_TEXT * 8'),
        ('(-1, 248, True), # 8', '(-1, -1, True), # 8'),
        ('res.body["timings"]["predicted_n"] == n_token_output',
         '(res.body["timings"]["predicted_n"] == n_token_output if n_predict > 0 else '
         '480 < res.body["timings"]["prompt_n"] + res.body["timings"]["predicted_n"] <= 513)'),
        ('"n_predict": n_predict,\n', '"n_predict": n_predict,\n        "ignore_eos": True,\n'),
        ('"n_predict": 256,\n', '"n_predict": 256,\n        "ignore_eos": True,\n'),
    ],
    "metrics": [('    assert "Process-Start-Time-Unix" in res.headers\n', ""),
                ("the quick brown fox jumps over the lazy dog\"",
                 "the quick brown fox jumps over the lazy dog\" * 16")],
    "slot_save": [
        ('"cache_prompt": True,', '"cache_prompt": True,\n        "ignore_eos": True,'),
        ('["prompt_n"] == 21 ', '["prompt_n"] == PROMPT_TOKENS '),
        ('["prompt_n"] == 6 ', '["prompt_n"] <= 6 '),
        ('["n_saved"] == 84', '["n_saved"] > 64'), ('["n_restored"] == 84', '["n_restored"] > 64'),
    ],
    # Their option --reasoning is our field of a request.
    "template": [('"tools": tools,\n    })\n    assert res.status_code == 200\n    prompt = '
                  'res.body["prompt"]\n\n    assert prompt.ends',
                  '"tools": tools,\n        "chat_template_kwargs": {"enable_thinking": '
                  'reasoning != "off"},\n    })\n    assert res.status_code == 200\n    prompt = '
                  'res.body["prompt"]\n\n    assert prompt.ends')],
}

NOT_OURS = {  # start of a test's name: why it is not run
    "test_basic.py::test_server_multiple_addresses": "--host takes one address",
    "test_basic.py::test_load_split_model": "a model in parts, from the network",
    "test_compat_anthropic.py::test_anthropic_vision_base64": "images",
    "test_security.py::test_local_media_file": "images",
    "test_security.py::test_cors_proxy": "a proxy for the page of llama-server",
    "test_security.py::test_access_static_assets": "files of the page of llama-server",
    "test_slot_save.py::test_slot_save_restore_text_only": "a model that reads images",
    "test_slot_save.py::test_slot_save_restore_with": "images",
    "test_slot_save.py::test_slot_save_restore_image": "images",
    "test_slot_save.py::test_slot_restore_media": "images",
    "test_slot_save.py::test_slot_restore_legacy": "llama-server's own file",
    "test_metrics.py::test_metrics_embedding": "embeddings",
    "test_tokenize.py::test_tokenize_with_bos": "SmolLM2 begins texts with no token",
    "test_template.py::test_date_inside_prompt": "the variables date_string and datetime, which "
                                                 "transformers does not set either",
    "test_kv_keep_only_active.py": "reads the log of llama-server's cache of idle slots",
}

FAILS = {  # start of a test's name: what is not as it expects
    "test_basic.py::test_server_slots": "/slots is always there, for this machine alone",
    "test_basic.py::test_no_ui": "the page is always there",
    "test_basic.py::test_server_model_aliases": "a model has one alias and no tags",
    "test_chat_completion.py::test_chat_completion[None-Book-What is the best book-8-^ blue": (
        "--chat-template takes a text without braces for a name"),
    "test_chat_completion.py::test_chat_template_assistant_prefill": (
        "an answer is gone on with where continue_final_message says so"),
    "test_chat_completion.py::test_apply_chat_template": "no template of the name command-r",
    "test_chat_completion.py::test_invalid_chat_completion_req[messages7]": (
        "two answers behind each other are the template's business"),
    "test_chat_completion.py::test_return_progress": (
        "progress is told after passes that leave something to read"),
    "test_chat_completion.py::test_chat_completions_multiple": (
        "a slot holds one answer: id_slot with n is refused"),
    "test_chat_completion.py::test_verbose_debug": "no __verbose: ask /apply-template",
    "test_compat_anthropic.py::test_anthropic_tool_result_with_image": (
        "an image is refused with 400, not with 500"),
    "test_compat_anthropic.py::test_anthropic_vision_format": (
        "an image is refused with 400, not with 500"),
    "test_compat_anthropic.py::test_anthropic_empty_messages": "no messages are refused",
    "test_compat_oai_responses.py::test_responses_stream_with_llama": (
        "no progress and times in /v1/responses"),
    "test_ctx_shift.py::test_ctx_shift_enabled": "no context shift: --keep",
    "test_ignore_eos.py": "ignore_eos is told as itself, not as biases",
    "test_metrics.py::test_metrics_disabled": "/metrics is always there",
    "test_metrics.py::test_metrics_prometheus_format": "seven of its metrics, and our own",
    "test_metrics.py::test_metrics_timings_on_prompt": "progress has no times beside it",
    "test_security.py::test_cors_options[web.mydomain.fr-Access-Control-Allow-Methods": (
        "the methods that there are: no DELETE"),
    "test_security.py::test_cors_origins_localhost_rejects": (
        "no --cors-origins: any page may ask, keys decide; /slots and /kv refuse foreign pages"),
    "test_security.py::test_cors_origins_defaults": "no --cors-origins",
}


def main():
    if sys.argv[1] == "--files":
        print(" ".join(f"unit/test_{name}.py" for name in FILES.split()))
        return
    folder = pathlib.Path(sys.argv[1]) / "unit"
    for name, changes in CHANGES.items():
        path = folder / f"test_{name}.py"
        text = path.read_text(encoding="utf-8")
        for old, new in changes:
            if old not in text:
                sys.exit(f"changes.py: {path.name}: there is no {old!r}")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
