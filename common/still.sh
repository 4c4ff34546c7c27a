#!/bin/sh
# still.sh - runs a command, and says every 20 seconds (PATIENCE) that it is still at work:
#
#     sh common/still.sh 'compiling x.cu' nvcc -c x.cu        ->   "  20 s: still compiling x.cu"
#
# Its exit code is the command's.
what=$1 every=${PATIENCE:-20}
shift

# Beside the command a shell sleeps and speaks. It ends when it is told to, or with this script, should that be killed. The sleep
# has no hold on the output, which may be a pipe that somebody reads to its end.
(
    trap 'kill $nap 2>/dev/null; exit' TERM
    seconds=0
    while sleep "$every" >/dev/null 2>&1 & nap=$!; wait $nap && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + every))
        echo "  $seconds s: still $what"
    done
) &
speaker=$!

"$@"
status=$?
kill $speaker 2>/dev/null
wait $speaker 2>/dev/null
exit $status
