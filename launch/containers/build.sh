#!/usr/bin/env bash
# What the recipes of both kinds of container run, as root in a fresh Debian 12:
#   build.sh tools   cpu|gpu              what set-up needs: Python, a compiler; for gpu CUDA's compiler
#   build.sh project cpu|gpu [REVISION]   set-up in /opt/horovod-twins: packages, MPI, Horovod compiled
#   build.sh runtime cpu|gpu              what running needs: Python, ssh, a user other than root
# Versions are in launch/installation/requirements/. A folder `wheels` in the project (make wheels WHEELS=wheels) is the only
# source of packages if it is there. Nothing of gpu has been tried.
set -euo pipefail

PROJECT=/opt/horovod-twins
USER_NAME=mpiuser
USER_ID=1000
SSH_PORT=2222 # a user other than root has none below 1024
CUDA=12-6     # as launch/installation/plan.py: the build of PyTorch that suits TensorFlow's CUDA 12
CUDA_KEYRING=https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb
GPUS=70,75,80,86,90 # compute capabilities Horovod is built for: V100, T4, A100, A10G, H100

packages() { # NAME...: install Debian packages, leave nothing else behind
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
  apt-get clean
  rm -rf /var/lib/apt/lists/*
}

tools() { # cpu|gpu
  packages ca-certificates g++ make python3 python3-dev python3-venv
  if [[ $1 == gpu ]]; then
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$CUDA_KEYRING" /tmp/keyring.deb
    dpkg -i /tmp/keyring.deb
    rm /tmp/keyring.deb
    packages "cuda-minimal-build-$CUDA"
  fi
}

project() { # cpu|gpu REVISION
  local revision=${2:-unknown} options=(--no-gpu)
  if [[ ! $revision =~ ^[0-9a-z+]+$ ]]; then
    echo "build.sh: REVISION is a commit. Received: $revision. Give what \`git rev-parse HEAD\` prints" >&2
    exit 2
  fi
  [[ $1 == cpu ]] || options=(--gpu)
  [[ ! -d $PROJECT/wheels ]] || options+=(--wheels "$PROJECT/wheels")
  cd "$PROJECT"
  find . -name __pycache__ -prune -exec rm -r {} +
  # What runs record as their source: there is no git in the image.
  printf '{"manifest": {"revision": "%s", "files": []}}\n' "$revision" > staged.json
  HOROVOD_TWINS_CACHE=/tmp/cache HOROVOD_BUILD_CUDA_CC_LIST=$GPUS PIP_NO_CACHE_DIR=1 \
    python3 launch/setup.py --frameworks "torch keras" "${options[@]}"
  rm -rf /tmp/cache wheels
  .venv/bin/python -m compileall -q common torch_impl keras_impl launch analysis
}

runtime() {
  packages openssh-client openssh-server python3
  useradd --create-home --uid "$USER_ID" --shell /bin/bash "$USER_NAME"
  install -d -o "$USER_NAME" -g "$USER_NAME" "$PROJECT/runs" # where runs go unless they are sent elsewhere
  # The MPI Operator mounts keys into ~/.ssh, which belong to root, and starts `sshd -De` as this user. Host keys would
  # be the same in all containers made from one image: the mounted key takes their place, and clients ask for none.
  rm -f /etc/ssh/ssh_host_*
  install -d -m 700 -o "$USER_NAME" -g "$USER_NAME" "/home/$USER_NAME/.ssh"
  cat > /etc/ssh/sshd_config <<CONFIG
Port $SSH_PORT
HostKey /home/$USER_NAME/.ssh/id_rsa
PidFile /home/$USER_NAME/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
AllowUsers $USER_NAME
SetEnv PATH=$PROJECT/.venv/bin:/usr/local/bin:/usr/bin:/bin
CONFIG
  cat > /etc/ssh/ssh_config <<CONFIG
Host *
  Port $SSH_PORT
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
CONFIG
}

if [[ ! ${1:-} =~ ^(tools|project|runtime)$ || ! ${2:-} =~ ^(cpu|gpu)$ ]]; then
  echo "build.sh: tools, project or runtime, then cpu or gpu. Received: ${*:-nothing}. See the top of $0" >&2
  exit 2
fi
"$@"
