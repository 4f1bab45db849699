"""One model's engine over its launches: life cycle, readiness, stopping."""
