"""`trial.fork_server` that refuses no module: it holds torch for the scripts of many tests, which import little else."""

from __future__ import annotations

from hotloop.trial import fork_server

fork_server._refuse_other_modules = lambda modules: None

if __name__ == "__main__":
    fork_server.main()
