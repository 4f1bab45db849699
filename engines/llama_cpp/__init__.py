"""llama.cpp: `llama-server`."""
