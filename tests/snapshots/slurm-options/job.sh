#!/usr/bin/env bash
# trial, 4 ranks on cte-power; written by `python -m launch submit`.
#SBATCH --job-name=trial
#SBATCH --partition=p
#SBATCH --account=a
#SBATCH --qos=q
#SBATCH --constraint=x&y
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=40
#SBATCH --mem=0
#SBATCH --gres=gpu:v:2
#SBATCH --time=90
#SBATCH --signal=B:USR1@120
#SBATCH --output=output.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --exclusive

set -e
trap 'echo $? > "$SLURM_SUBMIT_DIR/exit-code"' EXIT
trap 'exit 143' TERM
HOROVOD_TWINS_BEGAN_AT=$(date +%s.%N); export HOROVOD_TWINS_BEGAN_AT
cd /home/group/horovod-twins
export TF_CPP_MIN_LOG_LEVEL=3
export PYTHONUNBUFFERED=1
module purge
module load gcc/8.3.0 cuda/10.2 nccl/2.4.8 openmpi/4.0.1
export PATH="$PWD"/.venv/bin:$PATH
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
  unset HOROVOD_TWINS_SUBMITTED_AT
  submitted=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%V || true)
  if [ -n "$submitted" ]; then HOROVOD_TWINS_SUBMITTED_AT=$(date -d "$submitted" +%s); export HOROVOD_TWINS_SUBMITTED_AT; fi
fi

ranks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))
export SLURM_CPU_BIND=cores SLURM_GPU_BIND=none SLURM_WAIT=60
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # which srun does not take from sbatch
export NCCL_SOCKET_IFNAME=ib0 OMPI_MCA_btl_tcp_if_include=ib0
name="trial"
echo "$name: $ranks ranks on $SLURM_JOB_NODELIST, Slurm job $SLURM_JOB_ID, turn $((${SLURM_RESTART_COUNT:-0} + 1))"

# Slurm sends USR1 before the time limit: the ranks stop, and the requeued job resumes from what they saved.
step=
began=$(date +%s)
before_time_limit() {
  trap '' USR1
  if [ -n "$step" ]; then
    scancel --signal=TERM "$SLURM_JOB_ID" || true
    if wait "$step"; then exit 0; fi
  fi
  saved=$(find runs/"$name/checkpoints" -name state.json -newermt "@$began" -print -quit || true)
  if [ -z "$saved" ]; then
    echo "the time limit is near and nothing was saved since the start: give more --minutes, or fewer --checkpoint-minutes" >&2
    exit 1
  fi
  echo "the time limit is near: requeueing, to resume from what was saved"
  trap - EXIT
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}
trap before_time_limit USR1

HOROVOD_TWINS_STARTED_AT=$(date +%s.%N); export HOROVOD_TWINS_STARTED_AT
setsid srun --mpi=pmix --ntasks "$ranks" python torch_impl/train.py --epochs 3 --resume-or-start --checkpoint-minutes 10 --runs-folder runs --name "$name" --site cte-power &
step=$!
wait "$step"
