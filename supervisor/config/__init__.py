"""Config files: schema, loading, and what is wrong with them."""
