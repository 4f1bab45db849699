"""Model file formats: header in, metadata out."""
