#!/usr/bin/env bash
# Asks for a TPU slice and waits until it is there; see --help.

USAGE='usage: tpu/create.sh --name=NAME --zone=ZONE --topology=v5e:16x16 [flags]

Queues a request for a TPU slice and waits until the slice is ready.

  --name=NAME          of the slice
  --zone=ZONE          such as us-west4-a
  --topology=CHIP:SHAPE  as tpu.aot takes it: v5e:16x16, v5p:4x4x4, v6e:16x16
  --project=PROJECT    the configured one if not given
  --runtime_version=V  machine image; the one of the chip if not given
  --spot               cheaper, may be taken away at any time
  --reserved           from a reservation of yours
  --nowait             return at once
  --dry_run            print the commands, run none
  --help               this text'

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
parse_flags 'topology runtime_version' 'spot reserved nowait' "$@"
require topology
[[ -z "${FLAGS[spot]:-}" || -z "${FLAGS[reserved]:-}" ]] \
  || die '--spot and --reserved exclude each other'

accelerator="$(accelerator_type "${FLAGS[topology]}")"
image="${FLAGS[runtime_version]:-$(runtime_version "${FLAGS[topology]}")}"
request=(
  queued-resources create "${FLAGS[name]}"
  "--node-id=${FLAGS[name]}"
  "--accelerator-type=$accelerator"
  "--runtime-version=$image"
)
[[ -z "${FLAGS[spot]:-}" ]] || request+=(--spot)
[[ -z "${FLAGS[reserved]:-}" ]] || request+=(--reserved)
tpu "${request[@]}"

[[ -z "${FLAGS[nowait]:-}" ]] || exit 0
while true; do
  mapfile -t question < <(place)
  question=(
    gcloud compute tpus queued-resources describe "${FLAGS[name]}"
    '--format=value(state.state)' "${question[@]}"
  )
  if [[ -n "${FLAGS[dry_run]:-}" ]]; then
    run "${question[@]}"
    break
  fi
  state="$("${question[@]}")"
  printf '%s %s is %s\n' "$(date +%H:%M:%S)" "${FLAGS[name]}" "$state"
  case "$state" in
    ACTIVE) break ;;
    FAILED | SUSPENDED) die "${FLAGS[name]} is $state; tpu/delete.sh removes it" ;;
  esac
  sleep 30
done
