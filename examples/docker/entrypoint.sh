#!/bin/sh
# Take the token of both servers from a secret file, if there is one, and run the command.
set -eu
secret=${TOKEN_FILE:-/run/secrets/token}
if [ -f "$secret" ]; then
    LLAMA_INDEX_CONTEXTUAL_UI_TOKEN=$(cat "$secret")
    LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN=$LLAMA_INDEX_CONTEXTUAL_UI_TOKEN
    export LLAMA_INDEX_CONTEXTUAL_UI_TOKEN LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN
fi
exec llama-index-contextual "$@"
