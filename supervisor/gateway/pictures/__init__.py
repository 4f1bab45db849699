"""Pictures: what is asked for, jobs, and what engines make of them."""
