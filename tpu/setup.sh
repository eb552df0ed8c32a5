#!/usr/bin/env bash
# Installs the project on all workers of a slice; see --help.

USAGE='usage: tpu/setup.sh --name=NAME --zone=ZONE [flags]

Copies the last commit of this checkout to every worker and installs it there
with JAX for TPU. May be repeated: the copy is replaced, runs are kept.

  --name=NAME          of the slice
  --zone=ZONE          of the slice
  --project=PROJECT    the configured one if not given
  --nfs=HOST:/PATH     file server to mount at ~/shared on every worker, for a
                       workdir that all workers see
  --bucket=BUCKET      Cloud Storage bucket to mount at ~/shared instead
  --dry_run            print the commands, run none
  --help               this text'

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
parse_flags 'nfs bucket' '' "$@"
[[ -z "${FLAGS[nfs]:-}" || -z "${FLAGS[bucket]:-}" ]] \
  || die '--nfs and --bucket exclude each other'

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
archive="${TMPDIR:-/tmp}/icml26_jax-${FLAGS[name]}.tar.gz"
run git -C "$root" archive --format=tar.gz "--output=$archive" HEAD
tpu tpu-vm scp "$archive" "${FLAGS[name]}:icml26_jax.tar.gz" --worker=all

on_workers all "set -e
if [ -f runs/pid ] && kill -0 \"\$(cat runs/pid)\" 2>/dev/null; then
echo 'a run is going on: stop it with tpu/run.sh --stop' >&2
exit 1
fi
rm -rf $REMOTE_DIR
mkdir -p $REMOTE_DIR runs
tar -xzf icml26_jax.tar.gz -C $REMOTE_DIR
if [ ! -x venv/bin/python ]; then
  python=\$(command -v python3.13 || command -v python3.12 ||
    command -v python3.11 || true)
  if [ -z \"\$python\" ]; then
    sudo apt-get update -q
    sudo apt-get install -yq python3.11 python3.11-venv
    python=python3.11
  fi
  \$python -m venv venv
fi
venv/bin/pip install --quiet --upgrade pip
venv/bin/pip install --quiet -e './${REMOTE_DIR}[tpu]'"

if [[ -n "${FLAGS[nfs]:-}" ]]; then
  printf -v source_q '%q' "${FLAGS[nfs]}"
  on_workers all "set -e
mkdir -p shared
command -v mount.nfs >/dev/null || sudo apt-get install -y nfs-common
mountpoint -q shared || sudo mount -t nfs $source_q shared"
elif [[ -n "${FLAGS[bucket]:-}" ]]; then
  printf -v source_q '%q' "${FLAGS[bucket]}"
  on_workers all "set -e
mkdir -p shared
mountpoint -q shared || gcsfuse --implicit-dirs $source_q shared"
fi

on_workers all "venv/bin/python -c 'import jax
jax.distributed.initialize()
print(jax.process_index(), jax.local_device_count(), jax.device_count())'"
