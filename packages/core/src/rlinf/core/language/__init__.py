"""The words of language models: problems and how they become tokens, generation, and calls of tools."""
