"""From frozen values to a frozen launch plan. Never reads a file, a clock or a socket."""
