"""Compiled forms of the algorithms: the same updates on chains, for networks of plain layers."""
