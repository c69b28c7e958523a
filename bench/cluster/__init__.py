"""Rows and weights between the nodes of a Ray cluster."""
