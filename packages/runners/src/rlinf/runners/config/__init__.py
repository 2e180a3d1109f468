"""From a recipe and a command line to a typed configuration that every rule accepts."""
