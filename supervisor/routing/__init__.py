"""Where a request goes."""
