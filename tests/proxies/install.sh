#!/bin/bash
# Real proxies for the tests, from PyPI, each in an environment of its own below the cache. `install.sh NAME…` prints nothing and is quick when they are there.
set -euo pipefail

top=${XDG_CACHE_HOME:-$HOME/.cache}/slurm-serve/proxies
python=${PYTHON:-/usr/bin/python3}
mkdir -p "$top"
exec 9>"$top/lock"
flock 9

declare -A wanted=(
    [smg]='smg==1.13.0'
    [sglang-router]='sglang-router==0.3.2'
    [vllm-router]='vllm-router==0.1.17'
    # 1.107 was compromised.
    [litellm]='litellm[proxy]==1.106.4'
)
for name in "$@"; do
    if [ "$name" = prometheus ]; then
        # Debian's, unpacked: nothing is installed, nothing starts by itself.
        [ -x "$top/prometheus/prometheus" ] && continue
        at=$(mktemp -d)
        (cd "$at" && apt-get download -qq prometheus 2>/dev/null) || { echo "prometheus can't be had from Debian" >&2; exit 1; }
        dpkg-deb -x "$at"/prometheus_*.deb "$at/x"
        mkdir -p "$top/prometheus"
        cp "$at"/x/usr/bin/prom* "$top/prometheus/"
        rm -r "$at"
        continue
    fi
    version=${wanted[$name]:?"no such proxy: $name"}
    home=$top/$name
    [ "$(cat "$home/version" 2>/dev/null)" = "$version" ] && continue
    if [ ! -x "$top/uv/bin/uv" ]; then
        "$python" -m venv "$top/uv"
        "$top/uv/bin/pip" install --quiet uv
    fi
    rm -rf "$home"
    "$top/uv/bin/uv" venv --quiet --python "$python" "$home"
    "$top/uv/bin/uv" pip install --quiet --python "$home/bin/python" "$version"
    echo "$version" >"$home/version"
done

# sglang-router reads OpenAI's vocabularies at its start, and has no network to fetch them from. LiteLLM's wheel has them, under the names of their hashes.
case " $* " in *" sglang-router "*)
    flock -u 9; "$0" litellm; flock 9
    from=$(echo "$top"/litellm/lib/python*/site-packages/litellm/litellm_core_utils/tokenizers)
    mkdir -p "$top/tiktoken"
    cp "$from/fb374d419588a4632f3f557e76b4b70aebbca790" "$top/tiktoken/o200k_base.tiktoken"
    cp "$from/9b5ad71b2ce5302211f9c61530b329a4922fc6a4" "$top/tiktoken/cl100k_base.tiktoken"
esac
