"""Adapters that never ran against what they adapt: written to its documentation, and tested against a fake that behaves so.

One that has kept the contract on the real thing (`rlinf check-env`) moves out of this folder.
"""
