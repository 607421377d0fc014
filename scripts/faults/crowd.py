"""Many connections that say nothing, and bodies of 100 MB: the server stays able to answer, and its
memory comes back."""

import asyncio

from .wire import Line, Server, Wrong, ask, content_of, post, read_answer

N_IDLE = 1000
BODY = 100_000_000
QUESTION = {"prompt": "The friend of Otto is", "n_predict": 40, "seed": 5, "n_probs": 3}


async def idle_lines(server, n):
    """Open connections: most say nothing at all, some have begun a request or had an answer."""
    lines = []
    for i in range(n):
        line = await Line.open(server.port)
        if i % 10 == 1:
            await line.send(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Le")
        if i % 10 == 2:
            await line.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        lines.append(line)
    return lines


async def all_closed(lines):
    for line in lines:
        try:
            await asyncio.wait_for(line.reader.read(), 60)
        except OSError:
            pass
        except asyncio.TimeoutError:
            raise Wrong("a connection that says nothing stays open") from None
        await line.close()


async def idle(server, log):
    """All get in: the server answers at once beside them, and closes them when they are late."""
    alone = content_of(await post(server.port, "/completion", QUESTION))
    # Once before, so that the system has allocated its memory for that many.
    await all_closed(await idle_lines(server, N_IDLE))
    before, files = server.resident_kib(), server.n_files()
    lines = await idle_lines(server, N_IDLE)
    for _ in range(5):
        if content_of(await post(server.port, "/completion", QUESTION)) != alone:
            raise Wrong("another answer beside idle connections")
    most, n_open = server.resident_kib(), server.n_files() - files
    await all_closed(lines)
    await asyncio.sleep(0.2)
    after = server.resident_kib()
    await server.all_closed(files)
    log(f"  {N_IDLE} connections, {n_open} open at once: answers as alone; all closed when late")
    log(f"  resident memory {before} KiB before, {most} KiB beside them, {after} KiB after")
    return after - before


async def full(server, log):
    """More than the limit: who comes later waits until those who say nothing are closed."""
    lines = await idle_lines(server, 300)
    answer = await post(server.port, "/completion", QUESTION)
    await all_closed(lines)
    log(f"  at the limit of 200 connections, 300 idle: a request waits and gets {answer.code}")


def run_idle(args, log):
    server = Server(args.pith, args.nano, "--connections", N_IDLE + 100, "--timeout", 3)
    grown = asyncio.run(idle(server, log))
    server.end()
    if grown > args.slack * 1024:
        raise Wrong(f"{grown} KiB more resident memory than before")
    server = Server(args.pith, args.nano, "--connections", 200, "--timeout", 2)
    asyncio.run(full(server, log))
    server.end()


# ---- bodies ----


async def big(server, body, allowed):
    line = await Line.open(server.port)
    await line.send(f"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n".encode())
    for i in range(0, len(body), 1 << 20):
        await line.send(body[i:i + (1 << 20)])
    answer = await asyncio.wait_for(read_answer(line.reader), 300)
    await line.close()
    if answer is None or answer.code not in allowed:
        raise Wrong(f"a body of {len(body)} bytes: {answer and (answer.code, answer.body[:300])}")
    return answer.code


def filled(begin, fill, end):
    return begin + fill * ((BODY - len(begin) - len(end)) // len(fill)) + end


async def bodies(server, log):
    """Bodies within the bound, with all kinds of things in them."""
    kinds = [("a prompt", filled(b'{"prompt":"', b"The friend of Otto is Maria. ", b'"}'), {400}),
             ("no JSON", filled(b"", b"[", b""), {413}),
             ("numbers", filled(b'{"prompt":"x","n_predict":1,"other":[', b"1,", b"1]}"), {413}),
             ("spaces", filled(b'{"prompt":"x","n_predict":1', b" ", b"}"), {200})]
    alone = content_of(await post(server.port, "/completion", QUESTION))
    sizes = []
    for turn in range(2):
        for name, body, allowed in kinds:
            task = asyncio.create_task(big(server, body, allowed))
            n = 0
            while not task.done():
                if content_of(await post(server.port, "/completion", QUESTION)) != alone:
                    raise Wrong("another answer beside a large body")
                n += 1
                await asyncio.sleep(0.02)
            code = await task
            if turn == 1:
                log(f"  {len(body)} bytes of {name}: {code}, {n} answers beside it as alone")
        sizes.append(server.resident_kib())
    log(f"  resident memory {sizes[0]} KiB after each once, {sizes[1]} KiB after each twice")
    return sizes[1] - sizes[0]


def run_bodies(args, log):
    server = Server(args.pith, args.nano, "--body", "100MB")
    grown = asyncio.run(bodies(server, log))
    server.end()
    if grown > args.slack * 1024:
        raise Wrong(f"{grown} KiB more resident memory than before")
