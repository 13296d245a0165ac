"""APIs for other programs: the OpenAI-compatible API at `/v1` and a JSON API at `/api` (needs the `ui` extra)."""
