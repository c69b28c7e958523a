"""Stored figures, and the pages that show them."""
