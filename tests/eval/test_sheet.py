"""The page of `pith eval report` and of `pith run --map`, in headless Chromium: what it draws is
what its JSON says, whatever the files hold; it fits narrow and wide, dark and printed. axe-core
looks, too.

usage: test_sheet.py PITH MODEL

support/headless.py says what it needs; without that it is skipped.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "..", "support")]
from headless import ROOT, browser, complaints, expect, find, test_axe  # noqa: E402

DASH = "\u2013"


def line(task, policy, figures, rows=(), model="nano", **more):
    return {"task": task, "model": model, "policy": policy, "settings": {"style": "pith", "seed": 1},
            "summary": figures, "rows": list(rows), **more}


def needle(policy, score, n_bytes, speed, rows=()):
    return line("needle", policy, {"score": score, "n": 20, "kv_peak_bytes": n_bytes, "tokens_per_s": speed}, rows)


USUAL = [
    needle("full", .95, 811008, 5001.25, [{"length": 512, "depth": 0, "n": 2, "score": 1}, {"length": 512, "depth": .5, "n": 2, "score": .5}]),
    needle("streaming:budget=128", .2, 202752, 6357, [
        {"length": 512, "depth": 0, "n": 1, "score": 0}, {"length": 512, "depth": 0, "n": 3, "score": 1},
        {"length": 512, "depth": .5, "verdict": "PARTIAL_WORD"}]),
    needle("streaming:budget=256", .45, 304128, 6100), needle("h2o:budget=50%,window=8", .9, 405504, 4100),
    line("perplexity", "full", {"perplexity": 8.25, "perplexity_se": .125, "n": 40, "kv_peak_bytes": 811008}),
    line("perplexity", "streaming:budget=128", {"perplexity": 9.5, "perplexity_se": .25, "n": 40, "kv_peak_bytes": 202752}),
]
RECURSION = [line("recursion", policy, {"score": score, "n": 4}, rows) for policy, score, rows in (
    ("full", .75, [{"steps": 6, "n": 2, "score": 1}, {"steps": 8, "n": 2, "score": .5}]),
    ("a<b:budget=256", .5, [{"steps": 6, "n": 2, "score": .75}, {"steps": 8, "n": 2, "score": .25}]),
    ("a<b:budget=64", .125, [{"steps": 6, "n": 3, "score": .125}]))]
KEPT = [line("kept", "streaming:budget=8", {"n": 16}, [
    {"tokens": tokens, "layer": layer, "head": 0, "entries": entries, "kept": kept} for tokens, layer, entries, kept in
    ((8, 0, 8, "0-7"), (8, 1, 8, "0-7"), (16, 0, 6, "0-1,12-15"), (16, 1, 2, "0,15"))])]
EVIL = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 1'> & \"q\" \x01 \uffff"
HOSTILE = [line("<b onclick='hit = 1'>task", f"{EVIL}:budget={n}", {"score": .5, "n": 4, "kv_peak_bytes": 9},
                [{"length": 4, "depth": 0, "score": 1, "task": EVIL}], model=EVIL, cell={"engine": {EVIL: [EVIL]}},
                run={"date": EVIL, "cpu_level": EVIL, "version": EVIL}) for n in (128, 256)]
WRONG = [
    {"task": "needle", "summary": {"score": "high", "n": -3, "kv_peak_bytes": -1}, "model": 7, "policy": [], "settings": [],
     "cell": 3, "run": "x", "rows": [1, [], None, {"length": "x", "depth": 0, "score": 1}]},
    {"task": "needle", "summary": {"score": 7.5, "n": 1e300, "kv_peak_bytes": 1e308, "tokens_per_s": 1e-308},
     "rows": [{"length": 1e300, "depth": -5, "score": -1e9}], "policy": "a:budget=99999999999999999999"},
    {"task": "needle", "summary": {"score": .5, "n": 1, "kv_peak_bytes": 5, "tokens_per_s": 1e17}, "rows": [], "policy": "a:budget=7"},
    {"task": "needle", "summary": {"score": .25, "n": 1, "kv_peak_bytes": 1e18, "tokens_per_s": 1e-300}, "rows": [], "policy": "a:budget=8"},
    {"task": "needle", "summary": {"score": -7.5, "n": 2}, "rows": [], "policy": "a:budget=0", "cell": {"engine": {"a": [1]}, "policy": ""}},
    {"task": "kept", "settings": {"seed": 1}, "summary": {}, "rows": [
        {"tokens": 1e300, "layer": 4095, "head": 4095, "kept": "9-1,,x,5-", "entries": -1}]},
    {"task": "kept", "summary": {}, "rows": [{"tokens": 4, "layer": .5, "head": 0, "kept": "9-1,3,1e308-2,-7"},
                                             {"tokens": 4, "layer": -1, "head": 0, "kept": "1"},
                                             {"tokens": 4, "layer": 0, "head": 0, "kept": "9-1,3,1e308-2,-7,2-9"}]},
]


class Page:
    """Opens pages of results in one browser."""

    def __init__(self, program, folder):
        self.program, self.folder, self.b = program, folder, browser(1200, 900)

    def open(self, lines):
        results, page = (os.path.join(self.folder, name) for name in ("r.jsonl", "r.html"))
        with open(results, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        subprocess.run([self.program, "eval", "report", results, "-o", page], check=True, stdout=subprocess.DEVNULL)
        self.b.get("file://" + page)
        return self.b

    def all(self, selector):
        """The texts of all elements."""
        return self.b.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)


def test_usual(page):
    b = page.open(USUAL)
    expect("policies", page.all("header button > span:first-of-type"), ["full", "streaming", "h2o:window=8"])
    captions = page.all(".charts figcaption b")
    expect("charts", [sum(f"against {what}" in c for c in captions) for what in ("budget", "memory", "speed")], [3, 2, 1])
    for words in ("budget, tokens", "budget, share of the tokens so far", "50%"):
        expect(words, words in page.all(".charts text"), True)
    expect("dashed lines", len(page.all("path.dashed")), 3)
    expect("rows", len(page.all("tbody tr")), len(USUAL))
    expect("the first row", page.all("#r1 td"), ["needle", "full", DASH, "1", "20", "score", "0.950", "0.764 to 0.991", "792 KiB",
                                                  "5,001", DASH, DASH, DASH, DASH, DASH, "map"])
    expect("an interval of perplexity", page.all("#r5 td")[7], "8.005 to 8.495")
    links = b.execute_script("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href')).filter(h => !document.querySelector(h))")
    expect("links that lead nowhere", links, [])
    scores = b.execute_script("return [...document.querySelectorAll('.maps td')].map(e => [e.title, e.className])")
    expect("scores by depth", scores, [
        ["512 tokens, depth 0: 1.000 of 2", "h10 on-dark"], ["512 tokens, depth 0.5: 0.500 of 2", "h5 on-light"],
        ["512 tokens, depth 0: 0.750 of 4", "h8 on-dark"], ["512 tokens, depth 0.5: 0.000 of 1", "h0 on-dark"]])
    shown = "return [...document.querySelectorAll('main .series[data-policy=\"1\"]')].map(e => getComputedStyle(e).visibility)"
    find(b, "header li:nth-child(2) button").click()
    expect("a policy that is off", set(b.execute_script(shown)), {"hidden"})
    find(b, "header li:nth-child(2) button").click()
    expect("and on again", set(b.execute_script(shown)), {"visible"})
    test_axe(b, "a report")


def test_costs_that_were_read(page):
    """Everything is read everywhere: there is no chart of that."""
    for share, n in ((.25, 1), (1.0, 0)):
        page.open([line("needle", policy, {"score": .5, "n": 8, "read_share": part}) for policy, part in
                   (("full", 1.0), ("quoka:budget=64", share))])
        expect("charts", sum("the share that was read" in c for c in page.all(".charts b")), n)
        expect("shares", [row[12] for row in (page.all("#r1 td"), page.all("#r2 td"))], ["100%", f"{100 * share:g}%"])


def test_missing(page):
    page.open([line("needle", policy, {}, model="mini") for policy in ("full", "streaming:budget=64")])
    expect("figures", page.all("#r2 td")[4:15], [DASH] * 11)
    expect("facts", page.all("dd")[1:5], [DASH] * 4)
    expect("charts", len(page.all(".charts")), 0)


def test_matrix(page):
    b = page.open(RECURSION)
    expect("heads", page.all(".scores thead th"), ["budget", "none", "64", "256", "steps"] + ["6", "8"] * 3)
    expect("scores", page.all(".scores td"), ["1.00", "0.50", "", "", "", "", "", "", "0.13", DASH, "0.75", "0.25"])
    expect("a cell's words", find(b, ".scores td.h8").get_attribute("title"), "a<b at 256, steps 6")
    # Rows of which one lacks what the others differ in: the policy's figure at the budget.
    page.open(RECURSION[:2] + [dict(RECURSION[2], rows=[{"score": .125}])])
    expect("scores without parts", page.all(".scores td"), ["0.75", "", "", "", "0.13", "0.50"])
    # Of one policy it would be the chart again; perplexity is no share.
    for lines in (RECURSION[1:], USUAL[4:]):
        page.open(lines)
        expect("titles", "Every policy at every budget" in page.all("h3"), False)


PIXELS = """const [c, xs, y] = [document.querySelectorAll("canvas")[arguments[0]], arguments[1], arguments[2]];
    return xs.map(x => [...c.getContext("2d").getImageData((x + .5) * c.width / arguments[3], y * c.height, 1, 1).data].slice(0, 3).join())"""


def test_kept(page):
    """Two lanes of 16 tokens, looked at twice: a row of a panel is what its look says."""
    b = page.open(KEPT)
    expect("panels", page.all(".panel"), ["6 kept", "2 kept"])
    expect("names", [n in page.all(".lanes > span") for n in ("KV head 0", "layer 0", "layer 1")], [True] * 3)
    kept, gone, free = "0,104,168", "227,231,236", "255,255,255"
    for lane, y, wanted in ((0, .25, [kept] * 8 + [free] * 8), (1, .25, [kept] * 8 + [free] * 8),
                            (0, .75, [kept] * 2 + [gone] * 10 + [kept] * 4), (1, .75, [kept] + [gone] * 14 + [kept])):
        expect(f"lane {lane} at {y}", b.execute_script(PIXELS, lane, list(range(16)), y, 16), wanted)


def test_hostile(page):
    b = page.open(HOSTILE)
    expect("what ran", b.execute_script("return window.hit"), None)
    expect("elements", len(page.all("img, header b, body > script")), 2)
    expect("a policy's name", page.all("header button > span")[0].startswith("</script><script>window.hit"), True)
    expect("the title", page.all("h1")[0].startswith("</script><script>"), True)
    b = page.open(WRONG)
    words = b.execute_script("return document.body.innerText + [...document.querySelectorAll('svg')].map(s => s.outerHTML)")
    expect("no figures", [w for w in ("NaN", "Infinity", "undefined", "null", "[object") if w in words], [])
    expect("rows", len(page.all("tbody tr")), len(WRONG))
    expect("lanes", len(page.all("canvas")), 1)


def test_pieces(page):
    """Scales hold their range, labels leave marks and each other alone, figures have units."""
    b = page.open(USUAL)
    expect("scales", b.execute_script("""const wrong = [];
        for (const [low, high] of [[1, 1], [.5, .500001], [64, 128], [128, 8192], [1e-9, 1e12], [3, 11.9], [999, 1001], [2e5, 9e5]])
          for (const binary of [false, true]) {
            const s = positiveScale(low, high, 0, 100, binary), t = s.ticks;
            if (!(t.length >= 1 && t.length <= TICKS && s.at(low) >= 0 && s.at(high) <= 100 &&
                  t.every((x, i) => s.at(x) >= -1e-6 && s.at(x) <= 100 + 1e-6 && (i === 0 || x > t[i - 1])))) wrong.push([low, high, binary, t]);
          }
        const unit = linearScale(0, 1, 280, 10);
        return [wrong, unit.ticks.length, unit.at(0), unit.at(1)]"""), [[], 6, 280, 10])
    expect("labels", b.execute_script("""const boxes = Array.from({length: 12}, (_, i) => [145 + i, 25, 155 + i, 35]);
        for (let i = 0; i < 12; i++) placeLabel(boxes, 150 + i, 30, "123");
        const apart = (a, b) => a[0] >= b[2] || a[2] <= b[0] || a[1] >= b[3] || a[3] <= b[1];
        return [boxes.length > 12 && boxes.length < 24, boxes.slice(12).every((a, i) => boxes.slice(0, 12 + i).every(b => apart(a, b)))]"""),
        [True, True])
    expect("figures", b.execute_script("""return [bytesFigure(512), bytesFigure(1536), bytesFigure(1 << 20), bytesFigure(null),
        count(1234567), count(-1234), count(999), count(1e300), plain(.9822), plain(12.34), plain(12345.6)]"""),
        ["512 B", "1.5 KiB", "1 MiB", DASH, "1,234,567", "-1,234", "999", DASH, "0.982", "12.3", "12,346"])


def test_looks(page):
    """Nothing is wider than the window; colours follow the system, and paper is white."""
    page.open(USUAL + KEPT)
    for width in (390, 700, 1200):
        page.b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        expect("the page's width", page.b.execute_script("return document.documentElement.scrollWidth"), width)
    for media, scheme, ground, kept in (("", "dark", "rgb(23, 27, 32)", "93,180,238"), ("print", "dark", "rgb(255, 255, 255)", "0,104,168")):
        page.b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]})
        expect("the background", page.b.execute_script("return getComputedStyle(document.body).backgroundColor"), ground)
        expect("a kept position", page.b.execute_script(PIXELS, 0, [0], .25, 16), [kept])
        if media == "":
            test_axe(page.b, "a report in the dark")
    page.b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_map(page, model):
    """The map of a run: its lanes as its JSON has them, and its words."""
    path = os.path.join(page.folder, "map.html")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
            f.write(readme.read()[:1500])
        f.flush()
        subprocess.run([page.program, "run", "-m", model, "-t", "1", "-f", f.name, "-n", "8", "--ignore-eos", "--map", path, "--keep",
                        "streaming:sinks=4,budget=64,slack=16"], check=True, capture_output=True)
    b = page.b
    b.get("file://" + path)
    data = b.execute_script("return DATA")
    n, n_prompt = data["n_token"], data["n_prompt"]
    expect("generated", n - n_prompt, 7)  # the last one is not read
    expect("canvases", len(page.all("canvas")), data["n_layer"])
    expect("spans", [t for t in page.all(".span span") if t], [
        f"prompt: {n_prompt} tokens", "generated: 7 tokens", "sinks: the first 4 always stay"])
    expect("the policy", page.all(".keep"), ["--keep streaming:sinks=4,budget=64,slack=16"])
    for lane, text in enumerate(data["lanes"]):
        held = {p for part in text.split(",") for p in range(int(part.split("-")[0]), int(part.split("-")[1]) + 1)}
        layer, head = divmod(lane, data["n_head"])
        seen = b.execute_script(PIXELS, layer, list(range(n)), (head + .5) / data["n_head"], n)
        expect(f"lane {lane}", [p for p in range(n) if seen[p] == "0,104,168"], sorted(held))
    test_axe(b, "a map")


def main(program, model):
    with tempfile.TemporaryDirectory() as folder:
        page = Page(os.path.abspath(program), folder)
        try:
            for test in (test_usual, test_costs_that_were_read, test_missing, test_matrix, test_kept, test_hostile, test_pieces, test_looks):
                test(page)
            test_map(page, model)
            expect("complaints of the browser", complaints(page.b), [])
        finally:
            page.b.quit()
    print("sheet: all is well")


if __name__ == "__main__":
    main(*sys.argv[1:3])
