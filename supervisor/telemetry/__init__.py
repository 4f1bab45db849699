"""Logs, metrics and the event stream, all derived from events."""
