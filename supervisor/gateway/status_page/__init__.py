"""The status page: its files, and the routes that give them out."""
