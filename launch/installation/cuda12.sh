#!/usr/bin/env bash
# Installs CUDA 12's compiler from NVIDIA's packages on Debian 12 or Ubuntu, as root or by sudo. Horovod for TensorFlow's
# GPU build needs it, and PyPI has none. Where a whole one that knows all GPUs is in /usr/local nothing is done.
set -euo pipefail

RELEASE=12-9 # the last of CUDA 12; Blackwell needs 12.8
# Of the key that signs these packages, as https://github.com/NVIDIA/cuda-repo-management has it in SIGNATURES.md.
FINGERPRINT=EB693B3035CD5710E231E123A4B469963BF863CC
for home in /usr/local/cuda-12.{8,9}; do
  if [[ -x $home/bin/nvcc && -e $home/include/cuda_runtime.h ]]; then exit 0; fi
done

fail() {
  echo "cuda12.sh: error: $1. Install a CUDA 12 toolkit in another way and name it in HOROVOD_CUDA_HOME" >&2
  exit 2
}
as_root=()
if ((EUID)); then as_root=(sudo -n); fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 "$@" > /dev/null ||
    fail "NVIDIA's packages cannot be installed. Received: what is printed above"
}
# shellcheck source=/dev/null
distribution=$(. /etc/os-release && [[ ${VERSION_ID:-} ]] && echo "$ID${VERSION_ID//./}") ||
  fail "NVIDIA's packages are for releases of Debian and Ubuntu. Received: no VERSION_ID in /etc/os-release"
repository=https://developer.download.nvidia.com/compute/cuda/repos/$distribution/x86_64
if ! grep -qrs "$repository" /etc/apt/sources.list.d; then
  key=$(mktemp --suffix=.pub)
  trap 'rm -f "$key"' EXIT
  python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$repository/3bf863cc.pub" "$key" \
    2> /dev/null || fail "NVIDIA's packages for this system cannot be fetched. Received: $repository"
  command -v gpg > /dev/null || { apt update; apt install --no-install-recommends gpg; }
  keys=$(gpg --batch --show-keys --with-colons "$key" 2> /dev/null |
    awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }')
  [[ $keys == "$FINGERPRINT" ]] || fail "the key of NVIDIA's packages is another one. Received: ${keys//$'\n'/ }"
  keyring=/usr/share/keyrings/cuda-archive-keyring.gpg
  gpg --batch --dearmor < "$key" | "${as_root[@]}" tee "$keyring" > /dev/null
  echo "deb [signed-by=$keyring] $repository/ /" |
    "${as_root[@]}" tee "/etc/apt/sources.list.d/cuda-$distribution-x86_64.list" > /dev/null
fi
apt update
apt install --no-install-recommends "cuda-minimal-build-$RELEASE"
