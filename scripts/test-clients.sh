#!/bin/sh
# Installs real clients of PyPI in a virtual environment and runs them against `pith serve`.
#   scripts/test-clients.sh [NAME...]      NAME as in tests/clients/client_NAME.py; none: all
# PITH: the command (default build/cli/pith); PITH_CLIENTS: the environment (default build-clients);
# PITH_MODELS: a folder of scripts/models.sh, without which checks that need sense are skipped.
set -eu
cd "$(dirname "$0")/.."
PITH_CLIENTS=${PITH_CLIENTS:-$PWD/build-clients}
export PITH_CLIENTS
pip="$PITH_CLIENTS/bin/pip"

# A package that cannot be had is told, and its test says "not installed".
install() {
    "$pip" install -q --disable-pip-version-check "$@" ||
        echo "test-clients.sh: could not install $*" >&2
}

if [ ! -x "$PITH_CLIENTS/bin/python" ]; then
    python3 -m venv "$PITH_CLIENTS"
    install openai anthropic litellm langchain-openai 'pydantic-ai-slim[openai,anthropic]' \
        'smolagents[openai]' llm
    install 'lm-eval[api]' transformers
    install claude-agent-sdk
    # guidellm needs torch, which is 3 GB with what it brings along.
    if [ "${PITH_CLIENTS_TORCH:-}" = 1 ]; then
        install guidellm
    else
        echo "test-clients.sh: guidellm needs torch and is left out; PITH_CLIENTS_TORCH=1 adds it"
    fi
fi
exec python3 -B tests/clients/run.py "${PITH:-build/cli/pith}" "$@"
