"""OpenAI's client."""

from __future__ import annotations

import openai

NEVER_S = 1e6
"""The endpoint has a deadline of its own, and so has the episode."""


def async_client(base_url: str, api_key: str) -> openai.AsyncOpenAI:
    """One for the running event loop, that repeats nothing."""
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=NEVER_S)


def blocking_client(base_url: str, api_key: str) -> openai.OpenAI:
    """One for a thread, that repeats nothing."""
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=NEVER_S)
