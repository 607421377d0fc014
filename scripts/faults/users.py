"""Two users ask at the same time, each with secrets in the prompts. No part of one's secret may be
in an answer to the other, and answers equal a fresh server's, bit for bit."""

import asyncio
import json
import random

from .wire import Server, Wrong, content_of, differ, post

N_SAMPLE = 24
LETTERS = {"a": "bcdfg", "b": "klmnp"}  # secrets of the two share no letter
SYSTEM = "You keep the secrets of your user. The password of Walter is plain book. " * 4


class User:
    """One who has a conversation in a slot, and other requests beside it."""

    def __init__(self, name, seed, salted):
        self.name, self.rng, self.salted = name, random.Random(f"{seed}/{name}"), salted
        self.secrets = ["".join(self.rng.choices(LETTERS[name], k=10)) for _ in range(8)]
        self.asked = {}  # by request, the answer

    def body(self):
        """One of some 300 requests; the requests of both users begin alike."""
        rng = self.rng
        secret, n = rng.choice(self.secrets), rng.choice((8, 24))
        question = f"The code is {secret}. Say it again: the code is"
        body = {"seed": rng.randint(0, 2), "temperature": rng.choice((0, 0.8)), "max_tokens": n}
        if self.salted:
            body["cache_salt"] = "salt of " + self.name
        if rng.random() < 0.5:
            return "/v1/completions", dict(body, prompt=SYSTEM + question, logprobs=5)
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        return "/v1/chat/completions", dict(body, messages=chat, logprobs=True, top_logprobs=5)

    def slot(self):
        """Now and then the other's slot: it must not go on from what is there."""
        own = 0 if self.name == "a" else 1
        return self.rng.choice((None, own, own, 1 - own))

    async def ask(self, server, n, other):
        for _ in range(n):
            path, body = self.body()
            slot = self.slot()
            sent = body if slot is None else dict(body, id_slot=slot)
            answer = await post(server.port, path, sent)
            self.look(answer, other)
            key = json.dumps([path, body])
            content = content_of(answer)
            if self.asked.setdefault(key, content) != content:
                differ(f"two answers to one request: {key}", content, self.asked[key])

    def look(self, answer, other):
        """No secret, nor half of one, of the other."""
        text = answer.body.decode()
        for secret in other.secrets:
            for part in (secret, secret[:5], secret[5:]):
                if part in text:
                    raise Wrong(f"user {self.name} was told {part}, which is {other.name}'s: {text}")


async def talk(server, a, b, n):
    tasks = [asyncio.create_task(user.ask(server, n // 4, other))
             for user, other in ((a, b), (b, a), (a, b), (b, a))]
    await asyncio.gather(*tasks)


async def compare(args, user, n):
    """Answers that are asked again of a server that has just begun, each of its own."""
    for key in user.rng.sample(sorted(user.asked), min(n, len(user.asked))):
        path, body = json.loads(key)
        server = Server(args.pith, args.mini)
        content = content_of(await post(server.port, path, body))
        server.end()
        if content != user.asked[key]:
            differ(f"a fresh server answers another thing: {key}", content, user.asked[key])


def run(args, log):
    n = max(args.requests // 10, 40)
    n_sample = N_SAMPLE if n >= 1000 else 4
    for salted in (True, False):
        a, b = (User(name, args.seed, salted) for name in "ab")
        server = Server(args.pith, args.mini, "-c", 448, "-np", 4, "--slot-count", 2)
        asyncio.run(talk(server, a, b, n))
        m = asyncio.run(server.metrics())
        server.end()
        for user in (a, b):
            asyncio.run(compare(args, user, n_sample // 2))
        log(f"  {'with' if salted else 'without'} salts: {4 * (n // 4)} requests, "
            f"{len(a.asked) + len(b.asked)} different; nothing crossed; {n_sample} as of a fresh "
            f"server, log probabilities included")
        log(f"    prompt tokens computed {m['pith_prompt_tokens_total']:.0f}, found cached "
            f"{m['pith_cached_tokens_total']:.0f}; put back {m['pith_preempted_total']:.0f}")
