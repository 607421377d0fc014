#!/bin/sh
# Measures Pith, and peers with --peer DIR, on random models of Qwen3-0.6B's shape; see --help.
# Needs a build (make) in build/ or in --build DIR.
exec python3 "$(dirname "$0")/bench/run.py" "$@"
