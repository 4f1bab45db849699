#!/bin/sh
# Compiles sd-server for the image from stable-diffusion.cpp's source package on PyPI: build_sd_server.sh VERSION TARGET [SHA256]
# AVX2 and nothing else of the machine that compiles; no web page in it. With SHA256 no other source package is taken.
set -eu
version=$1 target=$2 sha256=${3-}
work=$(mktemp -d)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check cmake ninja
# pip looks into what it fetches, with the package's own tools, which may be wheels; the package itself may not.
"$work/venv/bin/pip" download --quiet --no-cache-dir --disable-pip-version-check --no-deps \
    --no-binary stable-diffusion-cpp-python --dest "$work" "stable-diffusion-cpp-python==$version"
source=$(echo "$work"/stable_diffusion_cpp_python-*.tar.gz)
if [ -n "$sha256" ]; then
    echo "$sha256  $source" | sha256sum --check --quiet
fi
tar xzf "$source" -C "$work" --strip-components=3 --wildcards '*/vendor/stable-diffusion.cpp/*'
PATH="$work/venv/bin:$PATH"
cmake -G Ninja -S "$work" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DSD_BUILD_EXAMPLES=ON \
    -DSD_SERVER_BUILD_FRONTEND=OFF -DSD_WEBP=OFF -DSD_WEBM=OFF -DGGML_NATIVE=OFF -DGGML_CCACHE=OFF -DGIT_EXE=OFF \
    -DSDCPP_BUILD_VERSION="pypi-$version" -DSDCPP_BUILD_COMMIT=unknown
cmake --build "$work/build" --target sd-server
install -m 755 -s "$work/build/bin/sd-server" "$target"
rm -rf "$work"
