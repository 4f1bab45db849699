"""The one address: HTTP in, engine out, errors in each API's form."""
