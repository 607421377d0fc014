"""The storm: requests that go wrong in every way, while honest users repeat known ones."""

import asyncio
import collections
import copy
import json
import random
import re
import time

from .wire import Line, Wrong, ask, content_of, differ, post, read_answer, text_of

N_AT_ONCE = 32
BIG = 100_000_000  # bytes of a body that is too large
WORDS = "The friend of Otto is Maria and the garden lies behind a wooden window in March".split()
FULL = {429, 503}

# ---- known requests, and those that are spoilt ----


def prompt(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def honest_bodies():
    rng = random.Random(7)
    chat = [{"role": "system", "content": prompt(rng, 40)},
            {"role": "user", "content": prompt(rng, 30)}]
    return [
        ("/v1/completions", {"prompt": prompt(rng, 60), "max_tokens": 40, "seed": 11, "n": 2,
                             "temperature": 0.9, "logprobs": 5}),
        ("/v1/chat/completions", {"messages": chat, "max_tokens": 40, "seed": 12, "stream": True,
                                  "temperature": 1.0, "logprobs": True, "top_logprobs": 3}),
        ("/completion", {"prompt": prompt(rng, 100), "n_predict": 60, "seed": 13,
                         "temperature": 0.7, "n_probs": 4, "ignore_eos": True}),
    ]


def any_request(rng):
    """(path, body) of one that is fine."""
    text = prompt(rng, rng.choice((1, 5, 40, 150)))
    n, stream = rng.randint(1, 40), rng.random() < 0.5
    chat = [{"role": "user", "content": text}]
    common = {"stream": stream, "seed": rng.randint(0, 99)}
    if rng.random() < 0.2:
        common["id_slot"] = rng.randint(0, 3)
    if rng.random() < 0.2:
        common["cache_salt"] = rng.choice("abc")
    if rng.random() < 0.1:
        common["cache_prompt"] = False
    return rng.choice((
        ("/completion", dict(common, prompt=text, n_predict=n, n_probs=rng.randint(0, 3))),
        ("/v1/completions", dict(common, prompt=[text, "The"], max_tokens=n, n=2)
         if "id_slot" not in common else dict(common, prompt=text, max_tokens=n)),
        ("/v1/completions", dict(common, prompt=text, max_tokens=n, logprobs=2)),
        ("/v1/chat/completions", dict(common, messages=chat, max_tokens=n)),
        ("/v1/chat/completions", dict(common, messages=chat, max_tokens=n, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "object", "properties": {"a": {"type": "boolean"}}}}})),
        ("/v1/messages", dict(common, messages=chat, max_tokens=n, model="x")),
        ("/v1/responses", dict(common, input=text, max_output_tokens=n, model="x")),
        ("/v1/messages/count_tokens", {"messages": chat, "model": "x"}),
        ("/tokenize", {"content": text}),
        ("/detokenize", {"tokens": [1, 2, 3]}),
        ("/apply-template", {"messages": chat}),
    ))


def places(value, at=()):
    """Paths to everything inside a document."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, list) else ()
    for k, v in items:
        found += places(v, at + (k,))
    return found


def put(document, place, value):
    document = copy.deepcopy(document)
    inner = document
    for k in place[:-1]:
        inner = inner[k]
    inner[place[-1]] = value
    return document


# ---- what may go wrong: each says how it ended ----


async def whole(storm, request, allowed, small=False):
    line = await Line.open(storm.port, small)
    try:
        await line.send(request)
    except OSError:
        pass  # the server need not read on
    return await outcome(line, allowed)


async def outcome(line, allowed):
    answer = await asyncio.wait_for(read_answer(line.reader), 300)
    await line.close()
    if answer is None:
        if None not in allowed:
            raise Wrong("the server hung up")
        return "closed by the server"
    if answer.code not in allowed:
        raise Wrong(f"status {answer.code}: {answer.body[:300]}")
    return str(answer.code)


async def fine(storm, rng):
    path, body = any_request(rng)
    return await whole(storm, text_of("POST", path, body), {200} | FULL)


async def watching(storm, rng):
    path = rng.choice(("/slots", "/kv", "/metrics", "/props", "/health", "/", "/v1/models"))
    return await whole(storm, text_of("GET", path), {200})


async def leave(line, rng):
    how = rng.choice(("close", "reset", "half"))
    if how == "reset":
        line.reset()
    elif how == "half":
        line.end_sending()
        try:
            await asyncio.wait_for(line.reader.read(), 60)
        except OSError:
            pass
    await line.close()
    return "hung up"


async def gone_while_asking(storm, rng):
    path, body = any_request(rng)
    request = text_of("POST", path, body)
    line = await Line.open(storm.port)
    await line.send(request[:rng.randrange(len(request))])
    await asyncio.sleep(rng.choice((0, 0, 0.01)))
    return await leave(line, rng)


async def gone_before_the_answer(storm, rng):
    path, body = any_request(rng)
    line = await Line.open(storm.port)
    await line.send(text_of("POST", path, body))
    await asyncio.sleep(rng.choice((0, 0.002, 0.02, 0.2)))
    return await leave(line, rng)


async def gone_while_reading(storm, rng):
    path, body = any_request(rng)
    body = dict(body, stream=True, n_predict=200, max_tokens=200, max_output_tokens=200)
    line = await Line.open(storm.port)
    await line.send(text_of("POST", path, body))
    try:
        await line.reader.read(rng.choice((1, 100, 1000, 5000)))
    except OSError:
        pass
    return await leave(line, rng)


async def gone_while_watching(storm, rng):
    line = await Line.open(storm.port)
    await line.send(text_of("GET", "/kv/events"))
    await line.reader.read(rng.choice((1, 4000, 40000)))
    return await leave(line, rng)


async def slow_reader(storm, rng):
    """Reads a little now and then: it gets all in the end, or is given up."""
    body = {"prompt": prompt(rng, 10), "n_predict": 1000, "stream": True, "ignore_eos": True,
            "n_probs": 5}
    line = await Line.open(storm.port, small=True)
    await line.send(text_of("POST", "/completion", body))
    for _ in range(rng.randint(1, 20)):
        try:
            if not await line.reader.read(500):
                break
        except OSError:
            break
        await asyncio.sleep(0.05)
    else:
        if rng.random() < 0.5:
            return await leave(line, rng)
    try:
        while await line.reader.read(65536):
            pass
    except OSError:
        pass
    await line.close()
    return "read to the end, or given up"


async def half_a_body(storm, rng):
    """Stops sending and waits: the server hangs up after --timeout."""
    path, body = any_request(rng)
    request = text_of("POST", path, body)
    line = await Line.open(storm.port)
    await line.send(request[:rng.randrange(1, len(request))])
    return await outcome(line, {None, 408})


async def broken_json(storm, rng):
    path, body = any_request(rng)
    text = bytearray(json.dumps(body).encode())
    how = rng.randrange(5)
    if how == 0:
        text = text[:rng.randrange(len(text))]
    elif how == 1:
        for _ in range(rng.randint(1, 8)):
            text[rng.randrange(len(text))] = rng.randrange(256)
    elif how == 2:
        text = bytes(rng.randrange(256) for _ in range(rng.randrange(2000)))
    elif how == 3:
        text = rng.choice((b"[", b'{"a":')) * rng.choice((10, 3000, 200_000))
    else:
        text += rng.choice((b"}", b"\0", b"{}", b"\xff", b" x"))
    return await whole(storm, text_of("POST", path, bytes(text)), {200, 400} | FULL)


async def wrong_types(storm, rng):
    path, body = any_request(rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.choice(places(body))
        body = put(body, at, rng.choice((None, True, 0, -1, 1.5, "", "x", "\0", [], {}, [[]],
                                         [None], {"a": {}}, {"type": "text"})))
    return await whole(storm, text_of("POST", path, body), {200, 400, 501} | FULL)


NUMBERS = ("1e308", "-1e308", "1e400", "9223372036854775807", "-9223372036854775808",
           "9223372036854775808", "1" * 400, "2147483647", "2147483648", "-2147483648", "0", "-1",
           "-0.0", "NaN", "-Infinity", "1e-320", "0.1e-400", "4294967296", "0x10", "01")
FIELDS = ("n_predict", "max_tokens", "max_output_tokens", "temperature", "top_k", "top_p", "min_p",
          "seed", "n", "logprobs", "top_logprobs", "n_probs", "id_slot", "repeat_last_n",
          "repeat_penalty", "presence_penalty", "frequency_penalty", "n_keep", "best_of",
          "logit_bias")


async def extreme_numbers(storm, rng):
    path, body = any_request(rng)
    text = json.dumps(body)[:-1]
    for _ in range(rng.choice((1, 1, 3))):
        text += f', "{rng.choice(FIELDS)}": {rng.choice(NUMBERS)}'
    return await whole(storm, text_of("POST", path, (text + "}").encode()), {200, 400} | FULL)


async def huge_body(storm, rng):
    """A body that is too large: read to its end, and refused."""
    line = await Line.open(storm.port)
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {BIG}\r\n"
    block = b'{"prompt": "' + b"a" * (1 << 20)
    left, stop = BIG, rng.choice((0, 0, rng.randrange(BIG)))
    try:
        await line.send(head.encode() + b"\r\n")
        while left > stop:
            n = min(left - stop, len(block))
            await line.send(block[:n])
            left -= n
    except OSError:  # it took longer than --timeout
        await line.close()
        return "closed by the server"
    return await leave(line, rng) if left > 0 else await outcome(line, {413, 503, None})


async def long_prompt(storm, rng):
    """More tokens than the memory holds: said with numbers."""
    body = {"prompt": prompt(rng, rng.choice((2000, 50_000))), "n_predict": 4}
    return await whole(storm, text_of("POST", "/completion", body), {400} | FULL)


async def broken_http(storm, rng):
    good = text_of("POST", "/completion", {"prompt": "x", "n_predict": 1})
    bad = rng.choice((
        bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        good.replace(b"Content-Length: ", b"Content-Length: -"),
        good.replace(b"Content-Length: ", b"Content-Length: 9" + b"9" * 30),
        good.replace(b"Content-Length: ", b"Content-Length: x"),
        b"POST /completion HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"POST /completion HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}\r\n0",
        b"\r\n\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ))
    line, said = await Line.open(storm.port), b""
    await line.send(bad)
    line.end_sending()
    try:
        said = await asyncio.wait_for(line.reader.read(), 60)
    except OSError:
        pass
    await line.close()
    code = re.match(rb"HTTP/1\.1 (\d{3}) ", said)
    if code is None:
        return "closed by the server"
    if code.group(1) not in (b"200", b"400", b"413", b"414", b"431", b"505"):
        raise Wrong(f"broken HTTP: {said[:300]}")
    return code.group(1).decode()


async def lost(storm, rng):
    method, path, allowed = rng.choice((
        ("GET", "/nothing", {404}), ("POST", "/health", {405}), ("DELETE", "/completion", {405}),
        ("POST", "/v1/embeddings", {501}), ("POST", "/slots/99?action=save", {400}),
        ("POST", "/slots/x?action=save", {404}), ("POST", "/slots/1?action=fly", {400}),
        ("POST", "/kv/cancel?id=99999999999", {404}), ("POST", "/kv/cancel?id=x", {400}),
        ("OPTIONS", "/completion", {200}), ("HEAD", "/health", None)))
    if allowed is None:
        return await whole_head(storm, path)
    return await whole(storm, text_of(method, path, b"" if method == "POST" else None), allowed)


async def whole_head(storm, path):
    line = await Line.open(storm.port)
    await line.send(text_of("HEAD", path))
    head = await line.reader.read()
    await line.close()
    if not head.startswith(b"HTTP/1.1 200") or not head.endswith(b"\r\n\r\n"):
        raise Wrong(f"HEAD {path}: {head[:100]}")
    return "200"


async def slots(storm, rng):
    """Saves, brings back and erases what others of the storm parked."""
    action = rng.choice(("save", "restore", "erase"))
    request = text_of("POST", f"/slots/{rng.randint(0, 3)}?action={action}",
                      {"filename": rng.choice(("a", "b", "../c", "", "d\0"))})
    return await whole(storm, request, {200, 400, 404, 409})


KINDS = (  # and how often
    (fine, 20), (watching, 3), (gone_while_asking, 12), (gone_before_the_answer, 10),
    (gone_while_reading, 10), (gone_while_watching, 1), (slow_reader, 1), (half_a_body, 3),
    (broken_json, 12), (wrong_types, 12), (extreme_numbers, 6), (long_prompt, 1), (broken_http, 4),
    (lost, 3), (slots, 3))


class Storm:
    def __init__(self, server, seed, n, n_huge, log):
        self.server, self.port, self.log = server, server.port, log
        self.seed, self.n, self.n_huge = seed, n, n_huge
        self.ends = collections.Counter()
        self.n_honest = 0
        self.over = False

    def kinds(self):
        rng = random.Random(self.seed)
        names = [k for k, _ in KINDS]
        order = rng.choices(names, [w for _, w in KINDS], k=self.n - self.n_huge)
        for i in range(self.n_huge):
            order.insert((2 * i + 1) * self.n // (2 * self.n_huge), huge_body)
        return order

    async def one(self, i, kind):
        try:
            end = await kind(self, random.Random(f"{self.seed}/{i}"))
        except (Wrong, OSError, asyncio.TimeoutError) as e:
            raise Wrong(f"request {i} of seed {self.seed}, {kind.__name__}: {e!r}") from e
        self.ends[kind.__name__, end] += 1

    async def worker(self, todo):
        for i, kind in todo:
            await self.one(i, kind)

    async def honest(self, path, body, alone):
        while not self.over:
            answer = await post(self.port, path, body)
            if content_of(answer) != alone:
                differ(f"{path}: another answer than alone", content_of(answer), alone)
            self.n_honest += 1
            await asyncio.sleep(0.02)

    async def blow(self, known):
        todo = iter(list(enumerate(self.kinds())))
        workers = asyncio.gather(*(self.worker(todo) for _ in range(N_AT_ONCE)))
        users = [asyncio.create_task(self.honest(*k)) for k in known]
        done, _ = await asyncio.wait([workers, *users], return_when=asyncio.FIRST_COMPLETED)
        self.over = True
        for task in done:
            task.result()
        await asyncio.gather(*users)


async def ask_alone(server):
    known = []
    for path, body in honest_bodies():
        known.append((path, body, content_of(await post(server.port, path, body))))
    return known


async def quiet(server, prefixes):
    """Nothing runs, waits or is held but what is counted; then slots are emptied, too."""
    def idle(m):
        held = m["pith_prefix_bytes"] + m["pith_parked_bytes"]
        return m["pith_requests_waiting"] == 0 and m["pith_answers_running"] == 0 and \
            (m["pith_swapped_bytes"] > 0) == (m["pith_parked_swapped"] > 0) and \
            m["pith_kv_used_bytes"] == held
    await server.until("idle, and pages in use are prefixes and slots", idle)
    for slot in (await ask(server.port, "GET", "/slots")).json():
        await ask(server.port, "POST", f"/slots/{slot['id']}?action=erase", b"")
    m = await server.until("slots are empty", lambda m: idle(m) and m["pith_parked_slots"] == 0)
    if not prefixes and m["pith_kv_used_bytes"] != 0:
        raise Wrong(f"{m['pith_kv_used_bytes']:.0f} bytes of pages are still in use")
    return m


async def run(server, seed, n, n_huge, prefixes, slack_kib, log):
    known = await ask_alone(server)
    warm = Storm(server, seed + 1, max(n // 4, 50), min(n_huge, 2), log)
    await warm.blow(known)
    await quiet(server, prefixes)
    before, files = server.resident_kib(), server.n_files()
    storm = Storm(server, seed, n, n_huge, log)
    start = time.monotonic()
    await storm.blow(known)
    seconds = time.monotonic() - start
    m = await quiet(server, prefixes)
    for path, body, alone in known:
        content = content_of(await post(server.port, path, body))
        if content != alone:
            differ(f"{path}: another answer after the storm", content, alone)
    after = server.resident_kib()
    await server.all_closed(files)
    if after > before + slack_kib:
        raise Wrong(f"{after} KiB resident, {before} before")
    tell(storm, m, seconds, before, after, log)
    last = await server.metrics()
    said = server.end()
    codes = collections.Counter(re.findall(r"^path=.* code=(\d+) ", said, re.M))
    n_line = sum(codes.values())
    if n_line != last["pith_http_requests_total"]:
        raise Wrong(f"{n_line} ends of {last['pith_http_requests_total']:.0f} requests")
    if any(code[0] == "5" and code not in ("501", "503") for code in codes):
        lines = re.findall(r"^path=.* code=5.*$", said, re.M)
        raise Wrong(f"errors of the server's own: {codes}, {lines[:20]}")
    log(f"  each of {n_line} requests that the server saw ended once: "
        + ", ".join(f"{code} {n}" for code, n in sorted(codes.items())))


def tell(storm, m, seconds, before, after, log):
    log(f"  {storm.n} requests in {seconds:.0f} s, seed {storm.seed}; beside them "
        f"{storm.n_honest} of honest users, equal to what they got alone")
    kinds = {}
    for (kind, end), n in sorted(storm.ends.items()):
        kinds.setdefault(kind, []).append(f"{end}: {n}")
    for kind, ends in kinds.items():
        log(f"    {kind.replace('_', ' '):24} {', '.join(ends)}")
    log(f"  pages in use {m['pith_kv_used_bytes']:.0f} bytes, all of them cached prefixes; at most "
        f"{m['pith_kv_peak_bytes']:.0f} of {m['pith_kv_reserved_bytes']:.0f}")
    log(f"  hung up {m['pith_http_gone_total']:.0f}, too slow {m['pith_http_dropped_total']:.0f}, "
        f"cancelled {m['pith_requests_cancelled_total']:.0f}, put back "
        f"{m['pith_preempted_total']:.0f}")
    log(f"  resident memory {before} KiB before, {after} KiB after")
