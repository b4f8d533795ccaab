#!/usr/bin/env bash
# What the recipes of both kinds of container run, as root in a fresh Debian 12:
#   build.sh tools                                   what set-up needs: Python, a compiler
#   build.sh project cpu|gpu FRAMEWORKS [REVISION]   set-up in /opt/horovod-twins: packages, MPI, Horovod compiled
#   build.sh runtime                                 what running needs: Python, ssh, a user other than root
# FRAMEWORKS is "torch keras", torch or keras. For gpu, PyTorch alone gets CUDA 13, both or TensorFlow get CUDA 12.
# Versions are in launch/installation/lock.txt. A folder `wheels` in the project (make wheels WHEELS=wheels) is the
# only source of packages if it is there.
set -euo pipefail

PROJECT=/opt/horovod-twins
USER_NAME=mpiuser
USER_ID=1000
SSH_PORT=2222 # a user other than root has none below 1024

packages() { # NAME...: install Debian packages, leave nothing else behind
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
  apt-get clean
  rm -rf /var/lib/apt/lists/*
}

tools() {
  packages ca-certificates g++ make python3 python3-dev python3-venv
}

project() { # cpu|gpu FRAMEWORKS REVISION
  local frameworks=$2 revision=${3:-unknown} options=(--no-gpu)
  if [[ ! $revision =~ ^[0-9a-z+]+$ ]]; then
    echo "build.sh: REVISION is a commit. Received: $revision. Give what \`git rev-parse HEAD\` prints" >&2
    exit 2
  fi
  [[ $1 == cpu ]] || options=(--gpu)
  if [[ -d $PROJECT/wheels ]]; then
    options+=(--wheels "$PROJECT/wheels")
  elif [[ $1 == gpu && $frameworks == *keras* ]]; then
    "$PROJECT/launch/installation/cuda12.sh"
  fi
  cd "$PROJECT"
  find . -name __pycache__ -prune -exec rm -r {} +
  # What runs record as their source: there is no git in the image.
  printf '{"manifest": {"revision": "%s", "files": []}}\n' "$revision" > staged.json
  # Users of the image cannot write bytecode.
  HOROVOD_TWINS_CACHE=/tmp/cache PIP_NO_CACHE_DIR=1 UV_COMPILE_BYTECODE=1 \
    python3 launch/setup.py --frameworks "$frameworks" "${options[@]}"
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

if [[ ! ${1:-} =~ ^(tools|project|runtime)$ ]]; then
  echo "build.sh: tools, project or runtime. Received: ${*:-nothing}. See the top of $0" >&2
  exit 2
fi
if [[ $1 == project && ! "${2:-} ${3:-}" =~ ^(cpu|gpu)\ (torch|keras|torch\ keras)$ ]]; then
  echo "build.sh: project takes cpu or gpu, then torch, keras or 'torch keras'. Received: ${*:2}. See the top of $0" >&2
  exit 2
fi
"$@"
