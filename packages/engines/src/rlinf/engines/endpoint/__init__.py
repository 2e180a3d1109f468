"""A policy behind an OpenAI-compatible endpoint, which records what its clients make of it."""

from rlinf.engines.endpoint.openai import OpenAIEndpointConfig as OpenAIEndpointConfig
