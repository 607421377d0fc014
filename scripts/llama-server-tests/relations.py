"""A pytest plugin: what llama-server's tests expect of one model, turned into relations.

Their texts and token counts belong to tinyllamas. Here a text must be what the same request gives
when it is asked again in the other form (streamed or whole), and a count of prompt tokens must be
what /tokenize counts. Nothing is downloaded.
"""
import json
import sys
import types

import pytest
import requests

sys.modules["wget"] = types.ModuleType("wget")

last = {}  # the latest request that made text: url, headers, body

TEXT_PATHS = ("/completion", "/completions", "/infill", "/messages", "/responses")


def note_request(url, headers, body):
    path = str(url).split("?")[0]
    if path.endswith(TEXT_PATHS) and isinstance(body, dict):
        keep = ("authorization", "x-api-key")
        last.update(url=path, body=body,
                    headers={k: v for k, v in dict(headers or {}).items()
                             if v and k.lower() in keep})


def watch_requests():
    """Sees what goes through requests, and through httpx, which the OpenAI library uses (newer
    ones call theirs httpx2)."""
    post = requests.post

    def noting(url, **kw):
        note_request(url, kw.get("headers"), kw.get("json"))
        return post(url, **kw)

    requests.post = noting
    try:
        import httpx2 as httpx
    except ImportError:
        import httpx
    send = httpx.Client.send

    def noting_send(self, request, **kw):
        try:
            note_request(request.url, request.headers, json.loads(request.content or b"null"))
        except ValueError:
            pass
        return send(self, request, **kw)

    httpx.Client.send = noting_send
    return post


plain_post = watch_requests()


def piece(data):
    """The text in one answer or in one event of a stream."""
    if "choices" in data:
        parts = []
        for c in data["choices"]:
            message = c.get("message") or c.get("delta") or c
            parts.append(message.get("content") or message.get("text") or "")
        return "".join(parts)
    if data.get("type") == "response.output_text.delta":
        return data["delta"]
    if "output" in data:
        return "".join(p.get("text", "") for o in data["output"] for p in o.get("content", []))
    return data["content"] if isinstance(data.get("content"), str) else ""


def ask_again(stream):
    body = dict(last["body"], stream=stream)
    answer = plain_post(last["url"], json=body, headers=last["headers"], timeout=60)
    assert answer.status_code == 200, answer.text
    if not stream:
        return piece(answer.json())
    lines = [line[6:] for line in answer.content.decode().split("\n") if line.startswith("data: ")]
    return "".join(piece(json.loads(line)) for line in lines if line != "[DONE]")


def text_of_model(regex, text):
    """In place of match_regex for a text of tinyllamas."""
    assert isinstance(text, str)
    assert text == ask_again(False), "the same request gives another text"
    assert text == ask_again(True), "streamed, the same request gives another text"
    return len(text) > 0


def applied():
    """What the latest chat's messages are as a prompt."""
    base = "/".join(last["url"].split("/", 3)[:3])
    answer = plain_post(base + "/apply-template", json=last["body"], headers=last["headers"])
    return answer.json()["prompt"]


class PromptTokens:
    """Equals the number of tokens that the latest prompt is, as /tokenize counts it."""

    def __eq__(self, other):
        base = "/".join(last["url"].split("/", 3)[:3])
        prompt = applied() if "messages" in last["body"] else last["body"]["prompt"]
        answer = plain_post(base + "/tokenize", headers=last["headers"],
                            json={"content": prompt, "add_special": True, "parse_special": True})
        assert other == len(answer.json()["tokens"]), (other, len(answer.json()["tokens"]))
        return True


PROMPT_TOKENS = PromptTokens()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Counts and texts that are parameters of a test. Their names carry no model's numbers."""
    from changes import FAILS, NOT_OURS
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and "n_prompt" in call.params:
            call.params["n_prompt"] = PROMPT_TOKENS
        name = item.nodeid.split("unit/", 1)[-1]
        for start, why in NOT_OURS.items():
            if name.startswith(start):
                item.add_marker(pytest.mark.skip(reason=why))
        for start, why in FAILS.items():
            if name.startswith(start):
                item.add_marker(pytest.mark.xfail(reason=why, strict=True))


def pytest_configure(config):
    """After conftest.py is there: its helpers, with another model."""
    sys.path.insert(0, str(config.rootpath))
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    match = utils.match_regex
    from changes import TEXTS

    def match_regex(regex, text):
        if regex in TEXTS:
            return text_of_model(regex, text)
        return match(regex, text)

    utils.match_regex = match_regex
    utils.PROMPT_TOKENS = PROMPT_TOKENS
    utils.applied = applied
