"""marlcore's parts in the codebases of others: edits of their sources, and what both sides give and cost."""
