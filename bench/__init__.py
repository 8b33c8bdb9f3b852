"""How fast the lab is, measured beside its peers: `uv run --project bench python -m bench`."""
