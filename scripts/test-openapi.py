#!/usr/bin/env python3
"""Asks `pith serve` what docs/openapi.yaml allows and what it does not, by schemathesis from PyPI.

    scripts/test-openapi.py [PITH [MODEL]] [--examples N] [--seed N] [--schemathesis PROGRAM]

Every route but the endless /kv/events is asked, with bodies that follow the file and with bodies
that break it. No answer may be a fault of the server's, have a status or a type of content that the
file does not list, or leave the server unable to answer. Exits with 0, 1, or 77 where schemathesis
is missing.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
# 500 is in no list of the file, and 501 where something is not offered.
CHECKS = ("status_code_conformance,content_type_conformance,response_schema_conformance,"
          "unsupported_method")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("pith", nargs="?", default=os.path.join(ROOT, "build", "cli", "pith"))
    p.add_argument("model", nargs="?", default=os.path.join(ROOT, "models", "pith-nano.gguf"))
    p.add_argument("--examples", type=int, default=50)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--schemathesis", default=shutil.which("schemathesis"))
    args = p.parse_args()
    if args.schemathesis is None:
        print("skipped: schemathesis is not there: pip install schemathesis")
        return 77
    server = subprocess.Popen([args.pith, "serve", "-m", args.model, "-t", "1", "--port", "0",
                               "-c", "1024", "-n", "4", "--timeout", "5"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = re.search("http://[^ \n]+", server.stdout.readline()).group()
        run = subprocess.run([args.schemathesis, "run", os.path.join(ROOT, "docs", "openapi.yaml"),
                              "--url", url, "--checks", CHECKS, "--max-examples",
                              str(args.examples), "--seed", str(args.seed), "--exclude-path",
                              "/kv/events", "--phases", "examples,coverage,fuzzing",
                              "--suppress-health-check", "all", "--warnings", "off",
                              "--continue-on-failure", "--request-timeout", "60"],
                             check=False)
        with urllib.request.urlopen(url + "/health", timeout=10) as answer:
            alive = answer.status == 200
    finally:
        server.terminate()
        status = server.wait(timeout=60)
    if status != 0 or not alive:
        print(f"the server ended with status {status}")
        return 1
    return 1 if run.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
