"""OpenAI's client."""

from __future__ import annotations

import ssl
from typing import Final

import openai

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The endpoint speaks plain HTTP. Made once and without certificates, which each client would otherwise read: 40 ms of CPU."""
NEVER_S: Final = 1e6
"""The endpoint has a deadline of its own, and so has the episode."""


def async_client(base_url: str, api_key: str) -> openai.AsyncOpenAI:
    """One for the running event loop, that repeats nothing."""
    http = openai.DefaultAsyncHttpxClient(verify=NO_TLS, timeout=NEVER_S)
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=NEVER_S, http_client=http)


def blocking_client(base_url: str, api_key: str) -> openai.OpenAI:
    """One for a thread, that repeats nothing."""
    http = openai.DefaultHttpxClient(verify=NO_TLS, timeout=NEVER_S)
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=NEVER_S, http_client=http)
