"""Installed executables of engines: finding, fingerprinting, inspecting, choosing."""
