"""Modules in place of libraries that are not installed."""

import importlib.machinery
import sys
import types


def put_module(monkeypatch, name, content):
    """Puts a module with this content in place; `find_spec` finds it, too."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module
