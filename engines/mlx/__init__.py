"""MLX: language models on Apple silicon."""
