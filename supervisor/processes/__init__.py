"""Child processes: spawning, signals, reaping, their output. Knows no engine."""
