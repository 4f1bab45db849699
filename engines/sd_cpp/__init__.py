"""stable-diffusion.cpp: `sd-server`."""
