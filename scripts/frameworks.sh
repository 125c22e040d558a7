#!/usr/bin/env bash
# Makes .venv-frameworks: the packages of tests/frameworks/requirements.txt in a layer above .venv, whose packages and headrace it
# sees. Does nothing when it is up to date. Needs scripts/setup.sh first.
set -euo pipefail
cd "$(dirname "$0")/.."
layer=.venv-frameworks
list=tests/frameworks/requirements.txt
stamp=$layer/.installed

# What the layer stands on: its own list, and the packages below it.
wanted=$(cat "$list" scripts/frameworks.sh <(.venv/bin/python -m pip freeze 2>/dev/null | sort) | sha256sum | cut -d' ' -f1)
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0

echo "frameworks: installing TensorFlow, JAX, Lightning, … into $layer (about two minutes the first time)"
rm -f "$stamp"
if [ ! -x $layer/bin/python ]; then
    .venv/bin/python -m venv $layer
fi
below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
site=$($layer/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$below')" >"$site/below.pth" # .pth files down there count as well

for try in 1 2 3; do
    UV_CACHE_DIR=${UV_CACHE_DIR:-$layer/uv-cache} .venv/bin/uv pip install -q --python $layer/bin/python --no-deps --only-binary :all: -r "$list" && break
    if [ $try = 3 ]; then
        echo "frameworks: the packages of $list could not be installed (uv's message is above). Is the package index reachable?" >&2
        echo "frameworks: nothing was tested; run  make test-frameworks  again" >&2
        exit 1
    fi
    sleep $((try * 10))
done
rm -rf $layer/uv-cache
printf '#!%s\nimport sys\n\nfrom headrace.cli.main import main\n\nsys.exit(main())\n' "$PWD/$layer/bin/python" >$layer/bin/headrace
chmod +x $layer/bin/headrace
echo "$wanted" >"$stamp"
