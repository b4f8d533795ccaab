#!/usr/bin/env bash
# trial, 2 ranks on slurm; written by `python -m launch submit`.
#SBATCH --job-name=trial
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=60
#SBATCH --output=output.log
#SBATCH --open-mode=append
#SBATCH --no-requeue

set -e
trap 'echo $? > "$SLURM_SUBMIT_DIR/exit-code"' EXIT
trap 'exit 143' TERM
HOROVOD_TWINS_BEGAN_AT=$(date +%s.%N); export HOROVOD_TWINS_BEGAN_AT
cd /home/group/horovod-twins
export TF_CPP_MIN_LOG_LEVEL=3
export PYTHONUNBUFFERED=1
export PATH="$PWD"/.venv/bin:$PATH

ranks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))
export SLURM_CPU_BIND=cores SLURM_GPU_BIND=none SLURM_WAIT=60
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # which srun does not take from sbatch
name="trial"
echo "$name: $ranks ranks on $SLURM_JOB_NODELIST, Slurm job $SLURM_JOB_ID, turn $((${SLURM_RESTART_COUNT:-0} + 1))"

HOROVOD_TWINS_STARTED_AT=$(date +%s.%N); export HOROVOD_TWINS_STARTED_AT
srun --mpi=pmix --ntasks "$ranks" python torch_impl/train.py --energy --runs-folder runs --name "$name" --site slurm
