#!/bin/sh
# Measures Pith, and peers with --peer DIR, on a random model of Qwen3-0.6B's shape; --help says more.
# Needs a build (make) in build/ or in --build DIR.
exec python3 "$(dirname "$0")/bench/run.py" "$@"
