"""Explicit operator state: immutable sorted runs, and the manifests that make versions of them."""
