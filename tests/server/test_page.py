"""The live page in headless Chromium: the chat answers, tokens change their colour when a round
runs, a request can be cancelled, a key is asked for, a replay goes back, two budgets are compared,
and all of it works with the keyboard, in the dark and on a telephone. axe-core looks at it, too.

usage: test_page.py VIEW_RECORD FOLDER [PITH]                FOLDER: the page's files; PITH: the
                                                             command, where it has serve
       test_page.py --shots URL QUESTION OUT                 pictures for the docs
       test_page.py --url URL                                against a server that runs
       test_page.py --lacks BUILD                            which command brings what is missing

support/headless.py says what it needs; without that it is skipped.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "..", "support")]
from headless import (ROOT, By, Keys, browser, click, complaints, expect, find, test_axe, text,  # noqa: E402
                      until, webdriver)
from page_server import Player  # noqa: E402

KEEP = "knorm:budget=256,slack=64,granularity=layer-head,recent=0.3"


def levels(b):
    """How many tokens are of each level, 0 gone to 8 held by every head."""
    return b.execute_script("""
        const n = new Array(9).fill(0);
        for (const t of document.querySelectorAll("#tokens b")) n[+/\\bk(\\d)/.exec(t.className)[1]]++;
        return n""")


def is_live(b):
    return "live" == text(b, "#state").strip()


def ask(b, words):
    box = find(b, "#words")
    box.send_keys(words)
    box.send_keys(Keys.ENTER)


def answer_of(b):
    """The last answer, as the model wrote it."""
    return b.execute_script("""const m = chat.messages[chat.messages.length - 1];
        return m && m.role === "assistant" ? m.content : "" """)


def drawn(b):
    """The last answer, as HTML."""
    return b.execute_script("""const s = document.querySelectorAll(".say.assistant .what");
        return s.length ? s[s.length - 1].innerHTML : "" """)


def quiet(b):
    until("the answer's end", lambda: not find(b, "#stop").is_enabled())


# ---- what is tested ----

def held_of(document):
    """Per position how many lanes hold it, from the run-length text."""
    out = []
    for run in document["followed"]["held"].split():
        held, n = map(int, run.split("*"))
        out += [held] * n
    return out


def expected_levels(document):
    lanes, n = len(document["followed"]["lanes"]), [0] * 9
    for held in held_of(document):
        n[0 if held == 0 else 8 if held == lanes else 1 + held * 7 // lanes] += 1
    return n


def test_chat_and_colours(b, player):
    b.get(player.url)
    until("a live page", lambda: is_live(b))
    expect("tokens before a question", sum(levels(b)), 0)
    player.may_round.clear()  # however slow the machine is, the page shows what was before
    ask(b, "What is the number?")
    until("tokens that every head holds", lambda: levels(b)[8] > 100)
    expect("tokens that are gone before a round", levels(b)[0], 0)
    player.may_round.set()
    until("a round", lambda: levels(b)[0] + levels(b)[1] > 0)
    until("a line of the log", lambda: "Round 1 request 1 at" in text(b, "#log"))
    said = "".join(line["say"] for line in player.lines if "say" in line)
    until("the whole answer", lambda: answer_of(b) == said)
    expect("the question", player.asked[0]["messages"], [{"role": "user", "content": "What is the number?"}])
    expect("stream", player.asked[0]["stream"], True)
    expect("a slot", player.asked[0].get("id_slot"), None)
    expect("the conversation's name", player.sessions[-1], b.execute_script("return session()"))
    last = player.lines[-1]["view"]
    expect("the recording's last document", last["type"], "snapshot")
    until("the last state", lambda: levels(b) == expected_levels(last), 5)
    own = next(r for r in last["requests"] if r["id"] == last["followed"]["id"])
    ratio = f"{own['full'] / (own['held'] + own['tier']):.1f} times less"
    until("the headline", lambda: ratio in text(b, "#headline"))
    expect("recall's part of the bar", len(b.find_elements(By.CSS_SELECTOR, "#own .c-guest, #own .c-tier")), 2)
    test_account(b, last["memory"])
    expect("rounds in the log", len(b.find_elements(By.CSS_SELECTOR, "#log li")), len(last["events"]))
    return last


def test_account(b, m):
    """The fold has every part that the server names, and their sum."""
    parts = m["parts"]
    whole = max(m["total"], m["budget"] or m["total"] + m["reserved"] - m["used"] - parts["idle"])
    expect("the budget bar", find(b, "#bar").get_attribute("aria-label"), f"{m['total']:,} of {whole:,} bytes taken")
    shown = b.execute_script("""return [...document.querySelectorAll("#keys li")].slice(0, PARTS.length)
        .map(li => li.hidden ? 0 : +li.lastChild.textContent.replace(/\\D/g, ""))""")
    expect("the parts of the account", sorted(shown), sorted(parts.values()))
    expect("their sum", sum(shown), m["total"])


def test_token(b, last):
    held = held_of(last)
    lanes = len(last["followed"]["lanes"])
    p = next(i for i, n in enumerate(held) if 0 < n < lanes)
    find(b, "#tokens").send_keys(Keys.HOME)
    find(b, "#tokens").send_keys(Keys.ARROW_RIGHT * p)
    until("the token's lanes", lambda: f"is held by {held[p]} of {lanes} lanes" in text(b, "#token"))
    expect("filled cells", len(b.find_elements(By.CSS_SELECTOR, "#token i.has")), held[p])
    if "round " not in text(b, "#token"):
        raise AssertionError("the token's rounds are not said")
    b.execute_script("document.querySelectorAll('#tokens b')[0].click()")
    until("a token that was clicked", lambda: "Token 0 " in text(b, "#token"))


def test_lanes(b, last):
    cells = b.find_elements(By.CSS_SELECTOR, "#grid button")
    expect("cells", len(cells), len(last["followed"]["lanes"]))
    cells[0].click()
    b.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    until("another lane", lambda: "Layer 1, head 1" in text(b, "#lane"))
    runs = last["followed"]["lanes"][3].split()  # layer 1, head 1 of 2
    kept = sum(int(run) for run in runs if ":" not in run)
    if f"{kept:,} of {last['followed']['n_token']:,} positions kept" not in text(b, "#lane"):
        raise AssertionError(f"{kept} positions are kept, and the page says {text(b, '#lane')!r}")


def test_cancel(b, player):
    row = until("a request that waits", lambda: b.find_elements(By.CSS_SELECTOR, '[aria-label="Cancel request 2"]'))
    row[0].send_keys(Keys.ENTER)
    until("the cancel to arrive", lambda: player.cancelled == [2])
    until("the row to go", lambda: not b.find_elements(By.CSS_SELECTOR, '[aria-label="Cancel request 2"]'))
    if "1 cancelled" not in text(b, "#queue"):
        raise AssertionError(f"the page says {text(b, '#queue')!r}")


def test_replay(b, last):
    before = levels(b)
    b.execute_script("""const r = document.querySelector("#frame");
        r.value = 3; r.dispatchEvent(new Event("input"))""")
    frame = last["frames"][3]
    until("fewer tokens", lambda: sum(levels(b)) == frame[4])
    expect("tokens gone then", levels(b)[0] if frame[5] == 0 else 0, 0)
    if "then:" not in text(b, "#when"):
        raise AssertionError(f"the replay says {text(b, '#when')!r}")
    find(b, "#live").send_keys(Keys.ENTER)
    until("live again", lambda: levels(b) == before)


def test_again(b, player, last):
    """A watcher who comes late gets the same picture, and a document twice changes nothing."""
    b.refresh()
    until("the same picture", lambda: levels(b) == expected_levels(last))
    n = b.execute_script("return S.samples.length")
    player.put({**player.lines[-2]["view"]})
    until("that it is drawn", lambda: b.execute_script("return S.samples.length > arguments[0] && dirty.size === 0", n))
    expect("after the last delta once more", levels(b), expected_levels(last))


# What a model may write, and what must never come of it.
MARKDOWN = """# Heading

Some **bold**, *slanted*, ~~gone~~ and `code <b>`, 2 * 3 * 4, snake_case_name.

- one
- two
  1. inner

| a | b |
|---|---|
| 1 | **2** |

> quoted

```python
print("<img src=x>")
```

<script>window.bad = 1</script><img src=x onerror="window.bad = 1">
[good](https://example.org/a) [bad](javascript:window.bad=1) [worse](data:text/html,x) ![picture](https://example.org/p.png)
"""


def test_markdown(b, player):
    """A text that comes in pieces is drawn as elements, and nothing in it is obeyed."""
    player.replies.append([MARKDOWN[i:i + 7] for i in range(0, len(MARKDOWN), 7)])
    ask(b, "Write it nicely.")
    until("the whole answer", lambda: answer_of(b) == MARKDOWN)
    quiet(b)
    html = drawn(b)
    for part in ("<h3>Heading</h3>", "<strong>bold</strong>", "<em>slanted</em>", "<s>gone</s>",
                 "<code>code &lt;b&gt;</code>", "2 * 3 * 4", "snake_case_name", "<ol><li>inner</li></ol>",
                 "<td><strong>2</strong></td>", "<blockquote><p>quoted</p></blockquote>",
                 "print(\"&lt;img src=x&gt;\")", "&lt;script&gt;window.bad = 1&lt;/script&gt;"):
        if part not in html:
            raise AssertionError(f"the answer lacks {part}: {html}")
    expect("scripts, pictures and frames", b.execute_script(
        "return document.querySelectorAll('#talk script, #talk img, #talk iframe').length"), 0)
    links = b.execute_script("return [...document.querySelectorAll('#talk .md a')].map(a => [a.href, a.rel])")
    expect("links", [l[0] for l in links], ["https://example.org/a", "https://example.org/p.png"])
    expect("what links may do", {l[1] for l in links}, {"noopener noreferrer nofollow"})
    expect("what was obeyed", b.execute_script("return window.bad"), None)


def test_reading(b, player):
    """While a prompt is read the message says how far that is, and when it will be done."""
    player.may_reply.clear()
    player.replies.append([{"prompt_progress": {"total": 6400, "cache": 400, "processed": 2400, "time_ms": 5000}},
                           "Done."])
    ask(b, "A long one.")
    player.may_reply.set()
    until("the whole answer", lambda: answer_of(b) == "Done.")
    quiet(b)
    expect("what is left of reading", len(b.find_elements(By.CSS_SELECTOR, ".reading")), 0)
    says = b.execute_script("""const box = document.createElement("div");
        drawReading(box, {total: 6400, cache: 400, processed: 2400, time_ms: 5000}); return box.textContent""")
    expect("how far it is", says, "Reading 2,400 of 6,400 tokens, 400 tokens/s, 10 s left; 400 were there")


def said(b):
    return b.execute_script("return chat.messages.map(m => [m.role, m.content])")


def test_messages(b, player):
    """Again, edit, and a system prompt, each in what is asked."""
    before = said(b)
    player.replies.append(["Another."])
    b.find_elements(By.XPATH, "//button[text()='Again']")[-1].click()
    until("another answer", lambda: answer_of(b) == "Another.")
    quiet(b)
    expect("what was said before it", said(b)[:-1], before[:-1])
    expect("what was asked", player.asked[-1]["messages"][-1]["content"], "A long one.")
    player.replies.append(["Edited."])
    b.find_elements(By.XPATH, "//button[text()='Edit']")[-1].click()
    box = find(b, ".edit textarea")
    expect("the text to edit", box.get_attribute("value"), "A long one.")
    box.clear()
    box.send_keys("A short one.")
    find(b, ".edit button.main").click()
    until("the answer to it", lambda: answer_of(b) == "Edited.")
    quiet(b)
    expect("the conversation", said(b), before[:-2] + [["user", "A short one."], ["assistant", "Edited."]])
    click(b, "#more summary")
    find(b, "#system").send_keys("Be short.")
    player.replies.append(["Yes."])
    ask(b, "Are you?")
    until("an answer", lambda: answer_of(b) == "Yes.")
    quiet(b)
    expect("the system prompt", player.asked[-1]["messages"][0], {"role": "system", "content": "Be short."})
    click(b, "#more summary")


def test_chats(b, player):
    """A reload keeps the chat, another tab has a name of its own, and chats can be left and
    deleted."""
    before, name = said(b), b.execute_script("return session()")
    expect("the name that requests came with", player.sessions[-1], name)
    b.refresh()
    until("a live page", lambda: is_live(b))
    expect("the chat after a reload", said(b), before)
    expect("its name after a reload", b.execute_script("return session()"), name)
    expect("its system prompt", find(b, "#system").get_attribute("value"), "Be short.")
    first = b.current_window_handle
    b.switch_to.new_window("tab")
    b.get(player.url)
    until("a live page", lambda: is_live(b))
    other = b.execute_script("return [tab, session()]")
    expect("names that two tabs share", name.split("-")[1] == other[0] or name == other[1], False)
    expect("the chat of a new tab", said(b), [])
    click(b, "#chats")
    find(b, "#history .open").click()
    until("the chat that was chosen", lambda: said(b) == before)
    expect("its name in another tab", b.execute_script("return session()") == name, False)
    text_file, json_file = b.execute_script("return [chatAsText(chat), JSON.parse(chatAsJson(chat))]")
    expect("the answer in the file", "## Model\n\nYes.\n" in text_file, True)
    expect("the messages in the file", [[m["role"], m["content"]] for m in json_file["messages"][1:]], before)
    b.close()
    b.switch_to.window(first)
    click(b, "#chats")
    find(b, '#history [aria-label^="Delete"]').click()
    expect("the chat that is deleted", said(b), [])
    expect("chats that are left", b.execute_script("return readChats().length"), 0)
    b.execute_script("for (let i = 0; i < 60; i++) writeChats([{...freshChat(), messages: "
                     "[{role: 'user', content: 'x'.repeat(1e5)}]}, ...readChats()])")
    n = b.execute_script("return [readChats().length, localStorage.getItem('pith-chats').length]")
    expect("bounds of what is stored", n[0] <= 40 and n[1] <= 3000000 and n[0] > 20, True)
    b.execute_script("writeChats([])")
    click(b, "#chats")


def test_words(b):
    """A word of Pith's own explains itself on focus and hover; Escape closes it."""
    lane = find(b, '#lanes [data-word="lane"]')
    b.execute_script("arguments[0].focus()", lane)
    until("the explanation", lambda: "one KV head" in text(b, "#tip") and find(b, "#tip").is_displayed())
    expect("what describes it", lane.get_attribute("aria-describedby"), "tip")
    lane.send_keys(Keys.ESCAPE)
    expect("the explanation after Escape", find(b, "#tip").is_displayed(), False)
    b.execute_script("document.activeElement.blur()")
    webdriver.ActionChains(b).move_to_element(lane).perform()
    until("the explanation under the mouse", lambda: find(b, "#tip").is_displayed())
    webdriver.ActionChains(b).move_to_element(find(b, "h1")).perform()
    until("no explanation", lambda: not find(b, "#tip").is_displayed())
    missing = b.execute_script("return [...document.querySelectorAll('.word')].map(w => w.dataset.word).filter(w => !WORDS[w])")
    expect("words without an explanation", missing, [])


def test_details(b, player):
    """A message says in words what the server reused, what it took, and what was evicted."""
    def says(pith):
        usage = {"prompt_tokens": 1260, "completion_tokens": 30, "pith": pith}
        player.replies.append(["So.", {"usage": usage, "timings": {"predicted_per_second": 12.5}}])
        ask(b, "How?")
        quiet(b)
        lines = until("details", lambda: b.execute_script("return [...document.querySelectorAll('.say:last-child .acts li')].map(l => l.textContent)"))
        return [re.sub("took [0-9.]+ s", "took a while", line) for line in lines]
    took = "The answer has 30 tokens and took a while, 12.5 tokens/s."
    expect("a first turn", says({"cached_tokens": 0, "read_tokens": 1260, "cache_why": "new"}),
           ["All 1,260 tokens of the prompt were read. Nothing in memory began like it.", took])
    expect("a later one", says({
        "cached_tokens": 1241, "read_tokens": 19, "cache_from": "conversation", "kv_bytes": 3 << 20, "tier_bytes": 1 << 20,
        "full_bytes": 8 << 20, "keep_rounds": 2, "evicted_entries": 5000, "kept_entries": 2000, "recalled_entries": 300}),
        ["1,241 of the prompt's 1,260 tokens were in memory from this conversation; 19 were read.", took,
         "It ended with 4.00 MiB of memory, where the full cache takes 8.00.",
         "5,000 entries were evicted so far and 2,000 are held; recall has 300 back."])
    expect("one that differs", says({"cached_tokens": 60, "read_tokens": 1200, "cache_from": "prefix",
                                     "cache_why": "differs", "cache_differs_at": 64, "max_tokens": 40})[::2],
           ["60 of the prompt's 1,260 tokens were in memory, since an earlier prompt begins alike; 1,200 were read. "
            "From token 64 on it differs from what is in memory.",
            "It could have 40 tokens at most: there was no room for more."])
    b.refresh()
    until("the details after a reload", lambda: len(b.find_elements(By.CSS_SELECTOR, ".acts details")) == 3)
    b.execute_script("for (const d of document.querySelectorAll('.acts details')) d.open = true")
    test_axe(b, "details")
    click(b, "#anew")


def test_compare(b, player):
    """One question to the slider's budget and to the full cache: memory, times, and what
    differs."""
    for answer, kv in (("The password is copper lantern now.", 2 << 20), ("The password is **copper** lantern today.", 8 << 20)):
        player.replies.append([answer[:9], answer[9:], {
            "usage": {"completion_tokens": 6, "pith": {"kv_bytes": kv, "tier_bytes": 0}},
            "timings": {"predicted_per_second": 12.5}}])
    n = len(player.asked)
    b.execute_script("const s = document.querySelector('#budget'); s.value = 0; s.dispatchEvent(new Event('input'))")
    expect("the slider", text(b, "#budget-says"), "64 entries")
    b.execute_script("document.querySelector('#words').value = 'What is it?'")
    click(b, "#both")
    until("the verdict", lambda: "differ" in text(b, "#verdict"))
    expect("the verdict", text(b, "#verdict"), "1 of 6 words differs, in 4.0 times less memory.")
    expect("words that differ", b.execute_script("return [...document.querySelectorAll('#compare mark')].map(m => m.textContent)"),
           ["now.", "today."])
    expect("budgets that were asked", [a.get("pith") for a in player.asked[n:]], [{"budget": "64"}, {"budget": "none"}])
    few, full = player.asked[n:]
    expect("the rest of both", {**few, "pith": 0}, {**full, "pith": 0})
    expect("what they may find", few["cache_prompt"], False)
    expect("what is said of memory", [text(b, f".one:nth-child({i}) .facts b") for i in (1, 2)], ["2.00 MiB", "8.00 MiB"])
    expect("the chat", said(b), [])


def test_key(lines, page):
    player = Player(lines, page, key="copper")
    b = browser()
    try:
        b.get(player.url)
        until("the question for a key", lambda: find(b, "#door").get_attribute("open"))
        find(b, "#key").send_keys("tin" + Keys.ENTER)
        until("the question again", lambda: find(b, "#door").get_attribute("open"))
        find(b, "#key").clear()
        find(b, "#key").send_keys("copper" + Keys.ENTER)
        until("a live page", lambda: is_live(b))
    finally:
        b.quit()
        player.close()


def test_looks(b, url):
    """No other origin, nothing wider than a telephone, a way for the keyboard to everything."""
    others = b.execute_script("""return performance.getEntriesByType("resource").map(e => e.name)
        .filter(n => !n.startsWith(location.origin) && !n.startsWith("data:"))""")
    expect("requests to other places", others, [])
    unnamed = b.execute_script("""return [...document.querySelectorAll("button, input, textarea, select")]
        .filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels && e.labels.length))
        .map(e => e.outerHTML)""")
    expect("controls without a name", unnamed, [])
    phone = browser(390, 844, phone=True)
    try:
        phone.get(url)
        until("a live page", lambda: is_live(phone))
        until("tokens", lambda: sum(levels(phone)) > 0)
        phone.execute_script("chooseToken(5, true)")
        expect("the page's width on a telephone",
               phone.execute_script("return document.documentElement.scrollWidth"), 390)
        click(phone, "#more summary")
        part = phone.execute_script("return document.querySelector('#talk').clientHeight / innerHeight")
        if part < 0.5:
            raise AssertionError(f"with Options open the conversation has {part:.2f} of a telephone")
        test_axe(phone, "on a telephone")
    finally:
        phone.quit()
    dark = browser(dark=True)
    try:
        dark.get(url)
        until("a live page", lambda: is_live(dark))
        shade = dark.execute_script("return getComputedStyle(document.body).backgroundColor")
        expect("the background in the dark", shade, "rgb(15, 18, 21)")
        dark.execute_script("document.querySelector('#bytes').open = true; chooseToken(5, true)")
        test_axe(dark, "in the dark")
    finally:
        dark.quit()


def record(program):
    model = os.path.join(ROOT, "models", "pith-mini.gguf")
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        prose = f.read()[:4000]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(prose)
        f.flush()
        run = subprocess.run([program, model, KEEP, f.name, "40", "640"], capture_output=True, check=True)
    return run.stdout.decode().splitlines()


def main(program, page):
    lines = record(program)
    player = Player(lines, page)
    b = browser()
    try:
        last = test_chat_and_colours(b, player)
        test_token(b, last)
        test_lanes(b, last)
        test_cancel(b, player)
        test_replay(b, last)
        test_looks(b, player.url)
        test_again(b, player, last)
        test_markdown(b, player)
        test_reading(b, player)
        test_messages(b, player)
        test_axe(b, "wide")
        test_words(b)
        test_chats(b, player)
        test_details(b, player)
        test_compare(b, player)
        test_axe(b, "two answers")
        expect("complaints of the browser", complaints(b), [])
    finally:
        b.quit()
        player.close()
    test_key(lines, page)
    print("page: all is well")


# ---- against a server, and pictures ----

def complete(url, said):
    """A request that nobody would wait for, sent beside the page."""
    body = {"prompt": "Once upon a time", "n_predict": 8000, "ignore_eos": True}
    request = urllib.request.Request(url + "completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            said.append(answer.read().decode())
    except urllib.error.HTTPError as e:
        said.append(e.read().decode())


def test_server_chat(b):
    b.execute_script("document.querySelector('#words').value = arguments[0]",
                     "The password of Maria is copper lantern. He went to the old mill. " * 40
                     + "What is the password of Maria?")
    b.execute_script("document.querySelector('#most').value = 200")
    find(b, "#words").send_keys(Keys.ENTER)
    until("an answer", lambda: len(answer_of(b)) > 10, 60)
    until("tokens of changed colour", lambda: sum(levels(b)[:8]) > 0, 60)
    until("a line of the log", lambda: "Round" in text(b, "#log"))
    until("the answer's end", lambda: not find(b, "#stop").is_enabled(), 60)
    test_server_saving(b)


def test_server_saving(b):
    """The headline is a saving with recall's tier in it, and the bar divides the full cache
    exactly."""
    line = until("the headline", lambda: re.search(r"takes .*: ([0-9.]+) times less", text(b, "#headline")))
    own, parts = b.execute_script("return [ownRequest(), ownParts(ownRequest()).map(p => p[3])]")
    expect("the ratio that it says", line.group(1), f"{own['full'] / (own['held'] + own['tier']):.1f}")
    expect("the sum of the bar", round(sum(parts)), own["full"])
    expect("what is beside it", bool(own["remembered"]) and "Beside it, policies remember" in text(b, "#lead"), True)
    expect("what recall has in it", [own["guest_bytes"], own["tier"]], parts[2:4])
    if own["tier"] == 0 or own["held"] + own["tier"] >= own["full"]:
        raise AssertionError(f"recall has a tier of {own['tier']} bytes, and the pages take {own['held']} of {own['full']}")
    details = until("the message's details", lambda: text(b, ".say:last-child .acts details"))
    if "tokens of the prompt were read" not in details or "full cache takes" not in details:
        raise AssertionError(f"the details say {details!r}")


def test_server_cancel(b, url):
    said = []
    thread = threading.Thread(target=complete, args=(url, said))
    cancel = '[aria-label^="Cancel request"]:not([hidden])'
    until("nobody else", lambda: not b.find_elements(By.CSS_SELECTOR, cancel))
    begin = time.time()
    thread.start()
    # At once: the small model writes a thousand tokens a second.
    until("a request that runs", lambda: b.execute_script(
        "const c = document.querySelector(arguments[0]); if (c) c.click(); return c !== null", cancel))
    thread.join(60)
    if not said:
        raise AssertionError(f"after {time.time() - begin:.0f} s the request still runs")
    until("the row to go", lambda: not b.find_elements(By.CSS_SELECTOR, cancel))
    if " cancelled" not in text(b, "#queue") or "cancelled" not in said[0]:
        raise AssertionError(f"the page says {text(b, '#queue')!r}, the server said {said[0][:300]!r}")


def test_server_compare(b):
    """The server answers one request with its budget and one with the full cache."""
    b.execute_script("""document.querySelector("#words").value = arguments[0];
        document.querySelector("#most").value = 40; document.querySelector("#both").click()""",
                     "The password of Maria is copper lantern. He went to the old mill. " * 40 + "What is it?")
    until("the verdict", lambda: "memory." in text(b, "#verdict"), 60)
    few, full = b.execute_script("return [...document.querySelectorAll('.one')].map(o => o.querySelector('.facts b').textContent)")
    if "MiB" not in full and "KiB" not in full or few == full:
        raise AssertionError(f"the budget takes {few}, the full cache {full}")
    until("the chat's own text again", lambda: "full cache takes" in text(b, "#headline"))
    click(b, "#compare-close")


def last_of(b):
    """Tokens that this tab's last request found, once its answer is there."""
    until("the answer's end", lambda: not find(b, "#stop").is_enabled(), 60)
    until("the request in the panels", lambda: b.execute_script("return ownRequest() !== undefined"))
    return b.execute_script("return [ownRequest().id, ownRequest().n_cached]")


def test_server_tabs(b, url):
    """Two tabs talk in turn: each goes on from its own conversation, and its panels follow that."""
    story = "The password of Maria is copper lantern. He went to the old mill. " * 10
    tabs = [b.current_window_handle]
    click(b, "#anew")
    b.switch_to.new_window("tab")
    tabs.append(b.current_window_handle)
    b.get(url)
    until("a live page", lambda: is_live(b))
    for turn in range(2):
        for tab in tabs:
            b.switch_to.window(tab)
            b.execute_script("document.querySelector('#most').value = 12; document.querySelector('#words').value = arguments[0]",
                             (story if turn == 0 else "And then?") + str(tabs.index(tab)))
            find(b, "#words").send_keys(Keys.ENTER)
            until("what was sent", lambda: b.execute_script("return document.querySelector('#words').value") == "")
            n_cached = last_of(b)[1]
            if turn == 1 and n_cached < 100:
                raise AssertionError(f"the second turn of a tab found {n_cached} tokens of the first")
    ids = []
    for tab in tabs:
        b.switch_to.window(tab)
        ids.append(last_of(b)[0])
    expect("requests that both tabs follow", ids[0] == ids[1], False)
    b.close()
    b.switch_to.window(tabs[0])


def against(url):
    b = browser()
    try:
        b.get(url)
        until("a live page", lambda: is_live(b))
        test_server_chat(b)
        test_server_cancel(b, url)
        test_server_compare(b)
        test_server_tabs(b, url)
        expect("complaints of the browser", complaints(b), [])
        print("page: the server answers, rounds show, cancel works")
    finally:
        b.quit()


def serve(program):
    """Starts `pith serve` with the small model and a small budget, and looks at it."""
    words = [program, "serve", "-m", os.path.join(ROOT, "models", "pith-mini.gguf"), "-t", "1", "--port",
             "0", "--chat-template", "chatml", "--keep", "knorm:budget=128,slack=64", "-c", "4096"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = server.stdout.readline()
        url = re.search("http://[^ ]+", line)
        if url is None:
            raise AssertionError(f"the server said {line!r}")
        threading.Thread(target=server.stdout.read, daemon=True).start()
        against(url.group().strip() + "/")
    finally:
        server.terminate()
        server.wait()


def still(b):
    until("a page that stands still", lambda: b.execute_script(
        "return dirty.size === 0 && document.getAnimations().every(a => a.playState !== 'running')"))


def picture(b, path):
    """Of few colours, so that the file is small."""
    from PIL import Image
    b.save_screenshot(path)
    image = Image.open(path).convert("RGB")
    image.quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def shots(url, question, folder):
    """Pictures of a server that answers what is in a file, whose word `copper` is looked at."""
    with open(question, encoding="utf-8") as f:
        words = f.read()
    for name, size, dark in (("page-light", (1440, 1500), False), ("page-dark", (1440, 1500), True),
                             ("page-telephone", (390, 844), False)):
        b = browser(*size, dark=dark, phone=name == "page-telephone")
        b.get(url)
        until("a live page", lambda: is_live(b))
        b.execute_script("""document.querySelector("#words").value = arguments[0];
            document.querySelector("#heat").value = 0; document.querySelector("#most").value = 150""", words)
        find(b, "#words").send_keys(Keys.ENTER)
        until("an answer", lambda: answer_of(b) != "", 300)
        until("its end", lambda: not find(b, "#stop").is_enabled(), 300)
        b.execute_script("""chooseToken(S.f.text.findIndex(t => t.includes("copper")), true);
            chooseLane(Math.min(43, S.f.went.length - 1), false);
            document.activeElement.blur();
            document.querySelector("#tokens").scrollTop = document.querySelector("#tokens .at").offsetTop - 150;
            document.querySelector(".say.user .what").scrollTop = 1e6""")
        if name == "page-telephone":
            b.execute_script("document.querySelector('#memory').scrollIntoView()")
        still(b)
        picture(b, os.path.join(folder, name + ".png"))
        b.quit()
    shot_of_two(url, question, folder)


def shot_of_two(url, question, folder):
    """A picture of the same question to the server's budget and to the full cache."""
    with open(question, encoding="utf-8") as f:
        words = f.read()
    b = browser(1440, 660)
    try:
        b.get(url)
        until("a live page", lambda: is_live(b))
        b.execute_script("""document.querySelector("#words").value = arguments[0];
            document.querySelector("#heat").value = 0; document.querySelector("#most").value = 150;
            document.querySelector("#both").click()""", words)
        until("the verdict", lambda: " word" in text(b, "#verdict"), 300)
        b.execute_script("document.querySelector('#compare-asked').scrollTop = 1e6; scrollTo(0, 0)")
        still(b)
        picture(b, os.path.join(folder, "page-compare.png"))
    finally:
        b.quit()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--lacks"]:
        pass  # nothing, or it would not have come here
    elif sys.argv[1:2] == ["--shots"]:
        shots(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--url"]:
        against(sys.argv[2])
    else:
        main(*sys.argv[1:3])
        for program in sys.argv[3:]:
            serve(program)
