#!/usr/bin/env bash
# Gives a slice back; see --help.

USAGE='usage: tpu/delete.sh --name=NAME --zone=ZONE [flags]

Deletes the slice and its request. What is on the workers is lost; a workdir
on a file server or in a bucket stays.

  --name=NAME          of the slice
  --zone=ZONE          of the slice
  --project=PROJECT    the configured one if not given
  --yes                do not ask
  --dry_run            print the commands, run none
  --help               this text'

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
parse_flags '' 'yes' "$@"

if [[ -z "${FLAGS[yes]:-}" && -z "${FLAGS[dry_run]:-}" ]]; then
  read -rp "Delete ${FLAGS[name]} and all that is on its workers? [y/N] " answer
  [[ "$answer" == [yY] ]] || die 'nothing deleted'
fi
# --force also deletes the machines.
tpu queued-resources delete "${FLAGS[name]}" --force --quiet
