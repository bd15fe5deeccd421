"""Peers and ours side by side on one GPU: see __main__.py."""
