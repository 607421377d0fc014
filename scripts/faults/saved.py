"""kill -9 while slots are saved: a file is whole or absent, and a new server goes on from it."""

import asyncio
import os
import random
import tempfile

from .wire import Server, Wrong, ask, content_of, differ, post

N_SLOT = 2
TEXT = "The friend of Otto is Maria. The garden of Anna lies behind a wooden window. " * 25
OPTIONS = ("--slot-count", N_SLOT)


def turn(slot):
    """The beginning of a conversation, a text of its own."""
    return {"prompt": f"{slot} {TEXT}", "n_predict": 20, "temperature": 0, "id_slot": slot,
            "seed": 1, "n_probs": 3, "ignore_eos": True}


def next_turn(first, slot):
    """The next request of a conversation, from the answer to the first."""
    text = turn(slot)["prompt"] + first["content"] + " And then"
    return dict(turn(slot), prompt=text)


async def talk(server):
    return [(await post(server.port, "/completion", turn(i))).json() for i in range(N_SLOT)]


async def act(server, slot, action, name):
    return await ask(server.port, "POST", f"/slots/{slot}?action={action}", {"filename": name})


async def save_on_and_on(server, n_saved):
    while True:
        for i in range(N_SLOT):
            answer = await act(server, i, "save", f"slot-{i}")
            if answer.code != 200:
                raise Wrong(f"save: {answer.code}: {answer.body[:300]}")
            n_saved[0] += 1


async def kill_within(server, rng, n_saved):
    """Kills at a moment of the saving that the seed decides."""
    task = asyncio.create_task(save_on_and_on(server, n_saved))
    await asyncio.sleep(rng.uniform(0, 0.4))
    server.kill()
    try:
        await task
    except Wrong as e:
        if "hung up" not in str(e):
            raise
    except OSError:
        pass


async def look(server, folder, goes_on, tally):
    """Files under their names restore and go on as the conversation would; others are refused."""
    for name in sorted(os.listdir(folder)):
        size = os.path.getsize(os.path.join(folder, name))
        slot = int(name.split("-")[1].split(".")[0])
        answer = await act(server, slot, "restore", name)
        if ".tmp-" in name:
            tally["cut"] += 1
            if answer.code not in (200, 400):
                raise Wrong(f"{name}, {size} bytes: {answer.code}: {answer.body[:300]}")
            os.unlink(os.path.join(folder, name))
            await act(server, slot, "erase", "x")
            continue
        tally["whole"] += 1
        if answer.code != 200:
            raise Wrong(f"{name}, {size} bytes: {answer.code}: {answer.body[:300]}")
        request, content = goes_on[slot]
        again = await post(server.port, "/completion", request)
        if content_of(again) != content:
            differ(f"{name}: goes on with another answer", content_of(again), content)
        if again.json()["timings"]["cache_n"] < answer.json()["n_restored"] - 1:
            raise Wrong(f"{name}: was restored, but read again")


async def first_time(server):
    """The next request of each slot and its answer, from a server that is not killed."""
    goes_on = []
    for i, first in enumerate(await talk(server)):
        request = next_turn(first, i)
        goes_on.append((request, content_of(await post(server.port, "/completion", request))))
    return goes_on


def run(args, log):
    rng, tally, n_saved = random.Random(args.seed), {"whole": 0, "cut": 0}, [0]
    n_round = min(max(args.requests // 300, 3), 30)
    server = Server(args.pith, args.mini, *OPTIONS)
    goes_on = asyncio.run(first_time(server))
    server.end()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(n_round):
            server = Server(args.pith, args.mini, *OPTIONS, "--slot-save-path", folder)
            asyncio.run(talk(server))
            asyncio.run(kill_within(server, rng, n_saved))
            server = Server(args.pith, args.mini, *OPTIONS, "--slot-save-path", folder)
            asyncio.run(look(server, folder, goes_on, tally))
            server.end()
    log(f"  {n_round} kills amid {n_saved[0]} saves: {tally['whole']} files under their names, all "
        f"restored and gone on from; {tally['cut']} left unfinished beside them")
