#!/usr/bin/env python3
"""Hurts `pith serve` in every way that a client can, and looks at what is left.

    scripts/test-faults.py [--requests 10000] [--seed N] [--part NAME] [PITH [MODELS]]

Parts: storm (what goes wrong, beside honest users), plain (the same without cached prefixes: pages
in use return to zero), idle (1,000 connections that say nothing), bodies (of 100 MB that are
allowed), users (two of them and their secrets), saved (kill -9 while slots are saved).
docs/server.md has the figures. Only the standard library is needed. The first thing that is wrong
ends it: exit status 1, and the seed and number of the request are said."""

import argparse
import asyncio
import os
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
from faults import crowd, saved, storm, users  # noqa: E402
from faults.wire import Server, Wrong  # noqa: E402

# A memory that a few answers fill, and patience of two seconds.
SMALL = ("-c", 1536, "--chunk", 64, "-np", 8, "--queue", 64, "--slot-count", 4, "-n", 24,
         "--timeout", 2, "--behind", "32KiB")


def log(text):
    print(text, flush=True)


def run_storm(args, prefixes):
    with tempfile.TemporaryDirectory() as folder:
        more = () if prefixes else ("--no-prefix",)
        server = Server(args.pith, args.nano, *SMALL, "--slot-save-path", folder, *more)
        asyncio.run(storm.run(server, args.seed, args.requests, max(args.requests // 500, 1),
                              prefixes, args.slack * 1024, log))


PARTS = {
    "storm": lambda args: run_storm(args, True),
    "plain": lambda args: run_storm(args, False),
    "idle": lambda args: crowd.run_idle(args, log),
    "bodies": lambda args: crowd.run_bodies(args, log),
    "users": lambda args: users.run(args, log),
    "saved": lambda args: saved.run(args, log),
}


def main():
    p = argparse.ArgumentParser(description="Hurts `pith serve` in every way that a client can.")
    p.add_argument("pith", nargs="?", default=os.path.join(ROOT, "build", "cli", "pith"))
    p.add_argument("models", nargs="?", default=os.path.join(ROOT, "models"))
    p.add_argument("--requests", type=int, default=10_000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--part", choices=sorted(PARTS), action="append")
    p.add_argument("--slack", type=int, default=16, help="MiB by which memory may differ")
    args = p.parse_args()
    args.nano = os.path.join(args.models, "pith-nano.gguf")
    args.mini = os.path.join(args.models, "pith-mini.gguf")
    for name in args.part or PARTS:
        log(f"{name}:")
        start = time.monotonic()
        try:
            PARTS[name](args)
        except Wrong as e:
            log(f"  WRONG: {e}")
            return 1
        log(f"  {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
