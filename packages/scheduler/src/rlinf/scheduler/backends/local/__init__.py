"""The `local` back-end."""
