"""The live page in headless Chromium: the chat answers, tokens change their colour when a round
runs, a request can be cancelled, a key is asked for, a replay goes back, and all of it works with
the keyboard, in the dark and on a telephone.

usage: test_page.py VIEW_RECORD INDEX_HTML [PITH]             PITH: the command, where it has serve
       test_page.py --shots RECORDING INDEX_HTML QUESTION FOLDER    pictures for the docs
       test_page.py --url URL                               against a server that runs

Needs Debian's chromium and chromium-driver, and Selenium from PyPI; without them it is skipped.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page_server import Player  # noqa: E402

SKIP = 77
WAIT = 20  # seconds for anything to appear
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEEP = "knorm:budget=256,slack=64,granularity=layer-head,recent=0.3"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIP)


try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    skip("Selenium is not there: pip install selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    skip("chromium is not there: apt install chromium chromium-driver")


def browser(width=1440, height=1000, dark=False, phone=False):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 "--hide-scrollbars", "--force-prefers-reduced-motion",
                 f"--window-size={width},{height}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    if dark:
        b.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone})
    return b


def until(what, test, seconds=WAIT):
    end = time.time() + seconds
    while time.time() < end:
        value = test()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"within {seconds} s there was never: {what}")


def find(b, selector):
    return b.find_element(By.CSS_SELECTOR, selector)


def text(b, selector):
    return b.execute_script("return document.querySelector(arguments[0]).textContent", selector)


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
    return b.execute_script("""const s = document.querySelectorAll(".say.assistant .what");
        return s.length ? s[s.length - 1].textContent : "" """)


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def complaints(b):
    return [entry["message"] for entry in b.get_log("browser")
            if entry["level"] == "SEVERE" and "401" not in entry["message"]]


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
    last = player.lines[-1]["view"]
    expect("the recording's last document", last["type"], "snapshot")
    until("the last state", lambda: levels(b) == expected_levels(last), 5)
    used = f"{last['memory']['used']:,} of {last['memory']['reserved']:,} bytes used"
    expect("the budget bar", find(b, "#bar").get_attribute("aria-label"), used)
    expect("rounds in the log", len(b.find_elements(By.CSS_SELECTOR, "#log li")), len(last["events"]))
    return last


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
    player.put({**player.lines[-2]["view"]})
    time.sleep(0.5)
    expect("after the last delta once more", levels(b), expected_levels(last))


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
        expect("the page's width on a telephone",
               phone.execute_script("return document.documentElement.scrollWidth"), 390)
    finally:
        phone.quit()
    dark = browser(dark=True)
    try:
        dark.get(url)
        until("a live page", lambda: is_live(dark))
        shade = dark.execute_script("return getComputedStyle(document.body).backgroundColor")
        expect("the background in the dark", shade, "rgb(15, 18, 21)")
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


def main(program, index):
    with open(index, "rb") as f:
        page = f.read()
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


def against(url):
    b = browser()
    try:
        b.get(url)
        until("a live page", lambda: is_live(b))
        test_server_chat(b)
        test_server_cancel(b, url)
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


def shots(recording, index, question, folder):
    """Pictures of a recording's end, of few colours so that they are small; question is the file
    that the recording was made from, as the user typed it."""
    from PIL import Image
    with open(recording, encoding="utf-8") as f:
        lines = f.read().splitlines()
    with open(index, "rb") as f:
        page = f.read()
    with open(question, encoding="utf-8") as f:
        words = f.read()
    for name, size, dark in (("page-light", (1440, 1660), False), ("page-dark", (1440, 1660), True),
                             ("page-telephone", (390, 844), False)):
        player = Player(lines, page, as_recorded=True)
        b = browser(*size, dark=dark, phone=name == "page-telephone")
        b.get(player.url)
        until("a live page", lambda: is_live(b))
        b.execute_script("document.querySelector('#words').value = arguments[0]", words)
        find(b, "#words").send_keys(Keys.ENTER)
        last = player.lines[-1]["view"]
        until("the last state", lambda: levels(b) == expected_levels(last), 120)
        until("the end", lambda: not find(b, "#stop").is_enabled(), 30)
        p = next(i for i, t in enumerate(last["followed"]["text"]) if "copper" in t)
        b.execute_script("""chooseToken(arguments[0], true); chooseLane(43, false);
            document.activeElement.blur();
            document.querySelector("#tokens").scrollTop = document.querySelector("#tokens .at").offsetTop - 150;
            document.querySelector(".say.user .what").scrollTop = 1e6""", p)
        if name == "page-telephone":
            b.execute_script("document.querySelector('#memory').scrollIntoView()")
        time.sleep(0.7)
        path = os.path.join(folder, name + ".png")
        b.save_screenshot(path)
        image = Image.open(path).convert("RGB")
        image.quantize(160, Image.Quantize.MAXCOVERAGE,
            dither=Image.Dither.NONE).save(path, optimize=True)
        b.quit()
        player.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--shots"]:
        shots(*sys.argv[2:6])
    elif sys.argv[1:2] == ["--url"]:
        against(sys.argv[2])
    else:
        main(*sys.argv[1:3])
        for program in sys.argv[3:]:
            serve(program)
