# rows.sh - the rows that a program prints with --json, and behind them a row that says how it ended.  (make compare, trace)
#
#     sh common/classroom/rows.sh PROGRAM OPTION...
#
#     {"program": "04_fa2", "options": "--head-dim 7", "exit_code": 2, "reason": "--head-dim 7: choose ..."}
#
# A signal's number is 128 less.
. common/classroom/tools.sh
name=${1##*/}
progress "$name ..."
{ reason=$("$@" --json 2>&1 >&3); } 3>&1
code=$?
progress
shift
quoted() { echo "$1" | sed -n '$ { s/["\\]/\\&/g; p; }'; } # the last line, as JSON has it
printf '{"program": "%s", "options": "%s", "exit_code": %d, "reason": "%s"}\n' "$name" "$(quoted "$*")" $code \
    "$(quoted "$reason" | sed 's/^[^: ]*: //')"
