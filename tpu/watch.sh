#!/usr/bin/env bash
# Shows the state of a slice and the log of its run; see --help.

USAGE='usage: tpu/watch.sh --name=NAME --zone=ZONE [flags]

Shows whether the slice is there, whether the run goes on, and the end of its
log.

  --name=NAME          of the slice
  --zone=ZONE          of the slice
  --project=PROJECT    the configured one if not given
  --worker=N           whose log; 0 if not given, or all
  --lines=N            lines of the log; 20 if not given
  --follow             keep showing what is added
  --dry_run            print the commands, run none
  --help               this text'

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
parse_flags 'worker lines' 'follow' "$@"
worker="${FLAGS[worker]:-0}"
lines="${FLAGS[lines]:-20}"
[[ "$worker" =~ ^([0-9]+|all)$ ]] \
  || die "--worker must be a number or all, got '$worker'"
[[ "$lines" =~ ^[0-9]+$ ]] || die "--lines must be a number, got '$lines'"

tpu queued-resources describe "${FLAGS[name]}" '--format=value(state.state)'
follow=''
[[ -z "${FLAGS[follow]:-}" ]] || follow=' -F'
on_workers "$worker" "if [ ! -f runs/pid ]; then
echo no run yet
exit 0
fi
if kill -0 \"\$(cat runs/pid)\" 2>/dev/null; then
echo running
else
echo not running
fi
tail -n $lines$follow runs/log"
