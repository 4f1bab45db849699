"""The only room that builds objects: what is known, the daemon, and the order of its start and stop."""

from supervisor.app.daemon import run_daemon
from supervisor.app.knowledge import Knowledge
from supervisor.app.options import DaemonOptions, OnListening

__all__ = ["DaemonOptions", "Knowledge", "OnListening", "run_daemon"]
