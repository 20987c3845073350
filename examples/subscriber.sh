#!/bin/sh
# Print each complete window of a feed once: subscriber.sh BOOTSTRAP FEED [COUNT]
# Needs kcat, and GNU date. Ends after COUNT windows; without it, never.
set -eu
export LC_ALL=C
if [ $# -lt 2 ]; then sed -n '2,3s/^# //p' "$0" >&2; exit 2; fi
broker=$1 feed=$2 count=${3:--1} done=" "

field() { # NAME of a JSON document on stdin: its first text or number
  grep -o "\"$1\":\"\{0,1\}[^\",}]*" | head -n 1 | sed "s/^\"$1\":\"\{0,1\}//"
}

# ce_id, a tab, the value: every message of one window, without repetitions, in order of ce_id. The timestamp of a
# message is the end of its window, and the marker is published last: what lies before the end of the topic is all.
messages() { # START END
  compact=$(echo "$1" | tr -d ':-')
  for topic in hexveil.hexagon-speed.v1 hexveil.spatial-histogram.v1; do
    kcat -b "$broker" -C -q -e -t "$topic" -o "s@$(date -d "$2" +%s)000" -f '%h\t%s\n' |
      sed "s/^\([^\t]*,\)\{0,1\}ce_id=\([^,\t]*\)[^\t]*\t/\2\t/" | grep "^$topic/$feed/$compact/" || true
  done | sort -u
}

pipe=$(mktemp -u)
mkfifo "$pipe"
kcat -b "$broker" -C -q -u -t hexveil.window.v1 -o beginning -f '%s\n' >"$pipe" &
reader=$!
trap 'kill $reader; rm -f "$pipe"' EXIT
trap 'exit 1' INT TERM
while read -r marker; do
  [ "$(echo "$marker" | field feed)" = "$feed" ] || continue
  start=$(echo "$marker" | field start)
  case $done in *" $start "*) continue ;; esac # a repeated marker
  found=$(messages "$start" "$(echo "$marker" | field end)")
  number=$(printf '%s' "$found" | grep -c . || true)
  digest=sha256:$(printf '%s' "$found" | cut -f 2- | tr -d '\n' | sha256sum | cut -d ' ' -f 1)
  [ "$number" = "$(echo "$marker" | field messages)" ] && [ "$digest" = "$(echo "$marker" | field digest)" ] || continue
  echo "$feed $start $number messages" # whatever you do with a window
  done="$done$start "
  count=$((count - 1))
  [ "$count" -ne 0 ] || break
done <"$pipe"
