#!/usr/bin/env bash
# Starts, or goes on with, a training run on all workers; see --help.

USAGE='usage: tpu/run.sh --name=NAME --zone=ZONE --config=FILE --workdir=DIR [flags]

Starts experiments.train on every worker, in the background. The same command
goes on with a run that stopped; where it still runs, nothing is started. A
run that is interrupted (exit code 75) is started again by itself.

  --name=NAME          of the slice
  --zone=ZONE          of the slice
  --config=FILE        such as configs/candi_1b.py
  --workdir=DIR        of the run; all workers must see it: shared/NAME, if
                       tpu/setup.sh mounted a file server or bucket
  --project=PROJECT    the configured one if not given
  --train_args="..."   further arguments of experiments.train, such as
                       --config.num_steps=1000
  --libtpu_args="..."  flags of the TPU compiler, for LIBTPU_INIT_ARGS
  --stop               stop the run instead; it saves a checkpoint first
  --dry_run            print the commands, run none
  --help               this text'

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
parse_flags 'config workdir train_args libtpu_args' 'stop' "$@"

if [[ -n "${FLAGS[stop]:-}" ]]; then
  # shellcheck disable=SC2016  # expanded on the workers
  on_workers all 'if [ -f runs/pid ]; then
touch runs/stop
pkill -TERM -s "$(cat runs/pid)" -f experiments.train || true
fi'
  exit 0
fi

require config workdir
command=(
  ../venv/bin/python -m experiments.train
  "--config=${FLAGS[config]}"
)
# Given relative to the home directory, run from the project's.
if [[ "${FLAGS[workdir]}" == /* || "${FLAGS[workdir]}" == *://* ]]; then
  command+=("--workdir=${FLAGS[workdir]}")
else
  command+=("--workdir=../${FLAGS[workdir]}")
fi
command+=(--distributed)
if [[ -n "${FLAGS[train_args]:-}" ]]; then
  read -ra extra <<<"${FLAGS[train_args]}"
  command+=("${extra[@]}")
fi
printf -v command_q '%q ' "${command[@]}"
printf -v flags_q '%q' "${FLAGS[libtpu_args]:-}"

# What each worker runs: once more after an interruption, never twice at once.
# A signal to stop is for the program; the loop ends after it.
loop="cd $REMOTE_DIR
trap : TERM
while true; do
  code=0
  ${command_q% } || code=\$?
  [ \$code -eq 75 ] && [ ! -f ../runs/stop ] || exit \$code
done"
printf -v loop_q '%q' "$loop"
on_workers all "set -e
mkdir -p runs
if [ -f runs/pid ] && kill -0 \"\$(cat runs/pid)\" 2>/dev/null; then
echo already running
exit 0
fi
rm -f runs/stop
export LIBTPU_INIT_ARGS=$flags_q
setsid nohup bash -c $loop_q >>runs/log 2>&1 </dev/null &
echo \$! >runs/pid
echo started"
