# rows.sh - the rows that a program prints with --json, and behind them a row that says how it ended.  (make compare, trace)
#
#     sh common/classroom/rows.sh PROGRAM OPTION...
#
#     {"program": "04_fa2", "exit_code": 2, "reason": "--head-dim 7: choose ..."}     a signal's number is 128 less
. common/classroom/tools.sh
name=${1##*/}
progress "$name ..."
{ reason=$("$@" --json 2>&1 >&3); } 3>&1
code=$?
progress
printf '{"program": "%s", "exit_code": %d, "reason": "%s"}\n' "$name" $code \
    "$(echo "$reason" | sed -n '$ { s/^[^: ]*: //; s/["\\]/\\&/g; p; }')"
