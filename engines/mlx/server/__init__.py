"""The MLX server: a program of its own, run as a child process by an interpreter that has ``mlx-lm``.

Nothing outside this folder imports it, and it imports nothing of the supervisor.
"""
