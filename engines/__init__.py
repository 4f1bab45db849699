"""Everything that knows an inference engine: flags, probes, log lines, files, memory.

No event loop is owned here, no HTTP server runs here (the MLX server apart), and nothing here imports the supervisor.
"""
