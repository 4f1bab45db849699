"""Replays what llama.cpp reserves for computing: the graph of a network, its placement, and ggml's allocator."""
