"""The models that clients can ask for."""
