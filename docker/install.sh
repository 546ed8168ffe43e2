#!/bin/sh
# Install rankmill from its locks into a folder, with kernels compiled for any processor of level x86-64-v3 (generic elsewhere).
#
#   docker/install.sh SOURCE PREFIX
#
# The Dockerfile and a test both run this script, so that the test covers the image.  The command is PREFIX/bin/rankmill.
#
#   PYTHON   the interpreter (default: python3)
#   LOCK     what is installed: cloud (default; for buckets) or dask (for clusters)
set -eu

source=$(cd "$1" && pwd)
mkdir -p "$2"
prefix=$(cd "$2" && pwd)

"${PYTHON:-python3}" -m venv "$prefix"
pip() { "$prefix/bin/python" -m pip --disable-pip-version-check --no-cache-dir --quiet "$@"; }
pip install --require-hashes --only-binary :all: -r "$source/locks/${LOCK:-cloud}.txt"

# The build writes into the source tree; build from a copy, so that the sources may be read-only.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
for part in pyproject.toml README.md LICENSE rankmill pipeline trainer scorer registry foundation; do
    cp -R "$source/$part" "$copy/"
done
pip install --no-deps --no-build-isolation "$copy"
pip uninstall --yes setuptools pip

# Remove unused files: tests, headers and stubs (never licences, which are in *.dist-info), Flight and S3 of pyarrow, since
# buckets are reached by obstore, and duplicates of its libraries.  If strip is installed, remove symbol tables too, except
# from *.libs: these libraries were edited after linking, and strip can break them.
packages=$("$prefix/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
find "$packages" -path '*.dist-info' -prune -o -type d \( -name test -o -name tests -o -name include -o -name includes \) -prune -exec rm -rf {} +
find "$packages" -type f \( -name '*.a' -o -name '*.h' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.pyx' \) -delete
rm -f "$packages"/pyarrow/*flight* "$packages"/pyarrow/*s3* "$packages"/pyarrow/*cpp_tests* \
    "$packages"/pyarrow/libarrow_python*.so "$packages"/pyarrow/libarrow_python*.so.*.*
if command -v strip > /dev/null; then
    find "$packages" -type f -name '*.so*' ! -path '*.libs/*' -exec strip --strip-unneeded {} +
fi

# -I: compile the installed packages, not those in the working directory.
"$prefix/bin/python" -I -m rankmill.shipped
