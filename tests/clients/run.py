#!/usr/bin/env python3
"""Runs tests of real clients and prints a table: client, version, state, what was checked.

    run.py PITH [NAME...]      NAME as in client_NAME.py; none: all

PITH_CLIENTS names the virtual environment that has the clients (scripts/test-clients.sh makes one),
PITH_MODELS the folder of real models. The exit status is 1 where a check failed, 77 where nothing
could run."""

import glob
import os
import subprocess
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))


def run(python, pith, name):
    """(client, version, state, checked); what a client prints goes to standard error."""
    done = subprocess.run([python, "-B", os.path.join(HERE, f"client_{name}.py"), pith],
                          stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT\t"):
            return line.split("\t")[1:]
        print(line, file=sys.stderr)
    return [name, "-", "fail", f"ended with status {done.returncode} and no result"]


def main():
    pith, names = sys.argv[1], sys.argv[2:]
    venv = os.environ.get("PITH_CLIENTS", "")
    python = os.path.join(venv, "bin", "python")
    if not venv or not os.path.exists(python):
        print("skipped: PITH_CLIENTS names no environment; to fetch it: scripts/test-clients.sh")
        return 77
    if not names:
        names = sorted(os.path.basename(p)[len("client_"):-len(".py")]
                       for p in glob.glob(os.path.join(HERE, "client_*.py")))
    states = set()
    for name in names:
        client, version, state, told = run(python, pith, name)
        states.add(state)
        lines = textwrap.wrap(told, 60) or [""]
        print(f"{client:18} {version:10} {state:5} {lines[0]}")
        for line in lines[1:]:
            print(" " * 36 + line)
        sys.stdout.flush()
    return 1 if "fail" in states else 0 if "pass" in states else 77


sys.exit(main())
