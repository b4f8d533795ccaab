#!/usr/bin/env bash
# Installs CUDA 12's compiler from NVIDIA's packages on Debian 12 or Ubuntu, as root or by sudo. Horovod for TensorFlow's
# GPU build needs it, and PyPI has none. Where a whole one that knows all GPUs is in /usr/local nothing is done.
set -euo pipefail

RELEASE=12-9 # the last of CUDA 12; Blackwell needs 12.8
for home in /usr/local/cuda-12.{8,9}; do
  if [[ -x $home/bin/nvcc && -e $home/include/cuda_runtime.h ]]; then exit 0; fi
done

fail() {
  echo "cuda12.sh: error: $1. Install a CUDA 12 toolkit in another way and name it in HOROVOD_CUDA_HOME" >&2
  exit 2
}
as_root=()
if ((EUID)); then as_root=(sudo -n); fi
# shellcheck source=/dev/null
distribution=$(. /etc/os-release && [[ ${VERSION_ID:-} ]] && echo "$ID${VERSION_ID//./}") ||
  fail "NVIDIA's packages are for releases of Debian and Ubuntu. Received: no VERSION_ID in /etc/os-release"
keyring=https://developer.download.nvidia.com/compute/cuda/repos/$distribution/x86_64/cuda-keyring_1.1-1_all.deb
file=$(mktemp --suffix=.deb)
trap 'rm -f "$file"' EXIT
python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$keyring" "$file" 2> /dev/null ||
  fail "NVIDIA's packages for this system cannot be fetched. Received: $keyring"
{
  "${as_root[@]}" dpkg -i "$file"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=300 \
    --no-install-recommends "cuda-minimal-build-$RELEASE"
} > /dev/null || fail "NVIDIA's packages cannot be installed. Received: what is printed above"
