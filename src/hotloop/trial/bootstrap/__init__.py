"""A directory for PYTHONPATH: it holds `sitecustomize.py` and nothing that could be imported by accident."""
