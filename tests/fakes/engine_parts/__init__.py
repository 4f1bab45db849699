"""The parts of the fake llama-server; standard library only, so that it starts in a tenth of a second."""
