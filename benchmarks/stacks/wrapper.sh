#!/bin/sh
# As `uv run` and `poetry run`: ends in what it starts.
exec "$@"
