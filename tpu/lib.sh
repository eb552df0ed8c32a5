# shellcheck shell=bash
# What the scripts for TPU slices share. Sourced, never run.
#
# A script sets USAGE, then calls parse_flags: the flag --some_name=value
# becomes ${FLAGS[some_name]}, and --switch becomes 1.

set -euo pipefail

# Where the project lies on each worker, below the home directory.
# shellcheck disable=SC2034  # the scripts use it
readonly REMOTE_DIR='icml26_jax'

declare -A FLAGS=()

die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# parse_flags "names of flags" "names of switches" "$@"
parse_flags() {
  local values=" $1 name zone project " switches=" $2 dry_run help "
  shift 2
  local argument name
  for argument in "$@"; do
    case "$argument" in
      --*=*)
        name="${argument%%=*}"
        name="${name#--}"
        [[ "$values" == *" $name "* ]] \
          || die "unknown flag --$name; see --help"
        FLAGS[$name]="${argument#*=}"
        ;;
      --*)
        name="${argument#--}"
        if [[ "$values" == *" $name "* ]]; then
          die "flag --$name needs a value: --$name=VALUE"
        fi
        [[ "$switches" == *" $name "* ]] \
          || die "unknown flag --$name; see --help"
        FLAGS[$name]=1
        ;;
      *) die "unexpected argument '$argument'; flags are --name=value" ;;
    esac
  done
  if [[ -n "${FLAGS[help]:-}" ]]; then
    printf '%s\n' "$USAGE"
    exit 0
  fi
  require name zone
  [[ "${FLAGS[name]}" =~ ^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$ ]] \
    || die "--name must be lower-case letters, digits and dashes," \
      "got '${FLAGS[name]}'"
}

# require FLAG...: ends unless each is given and not empty.
require() {
  local name
  for name in "$@"; do
    [[ -n "${FLAGS[$name]:-}" ]] || die "--$name=VALUE is required; see --help"
  done
}

# run COMMAND...: prints the command; runs it unless --dry_run.
run() {
  printf '%q ' "$@" | sed 's/ $//'
  printf '\n'
  if [[ -z "${FLAGS[dry_run]:-}" ]]; then
    "$@"
  fi
}

# Where the slice is, as arguments of gcloud.
place() {
  printf -- '--zone=%s\n' "${FLAGS[zone]}"
  if [[ -n "${FLAGS[project]:-}" ]]; then
    printf -- '--project=%s\n' "${FLAGS[project]}"
  fi
}

# tpu ARGUMENT...: gcloud on the queued resources or the machines of a slice.
tpu() {
  local where
  mapfile -t where < <(place)
  run gcloud compute tpus "$@" "${where[@]}"
}

# on_workers WORKERS COMMAND: runs a shell command on some or all workers.
on_workers() {
  tpu tpu-vm ssh "${FLAGS[name]}" "--worker=$1" "--command=$2"
}

# accelerator_type TOPOLOGY: as the cloud names a topology of tpu.aot.
accelerator_type() {
  local shape="${1#*:}" count=1 size
  [[ "$1" =~ ^v[0-9]+[a-z]:[0-9]+(x[0-9]+)+$ ]] \
    || die "--topology must be like v5e:16x16, got '$1'"
  for size in ${shape//x/ }; do
    count=$((count * size))
  done
  case "$1" in
    v5e:*) printf 'v5litepod-%d\n' "$count" ;;
    # Counts cores, two a chip.
    v5p:*) printf 'v5p-%d\n' "$((2 * count))" ;;
    v6e:*) printf 'v6e-%d\n' "$count" ;;
    *) die "--topology must be of v5e, v5p or v6e, got '$1'" ;;
  esac
}

# runtime_version TOPOLOGY: the machine image that goes with the chip.
runtime_version() {
  case "$1" in
    v5e:*) printf 'v2-alpha-tpuv5-lite\n' ;;
    v5p:*) printf 'v2-alpha-tpuv5\n' ;;
    v6e:*) printf 'v2-alpha-tpuv6e\n' ;;
    *) die "--topology must be of v5e, v5p or v6e, got '$1'" ;;
  esac
}
