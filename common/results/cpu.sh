# cpu.sh - what each stage prints on the CPU device, a file per stage in notes/results/cpu/, as its page shows it.  (make results)
name=results
. common/classroom/tools.sh
programs=${1:-.} # the folder with the stages' programs
: "${RESULTS:=notes/results/cpu}"
mkdir -p "$RESULTS" || exit 2
for program in "$programs"/[0-9][0-9]_*/; do
    stage=$(basename "$program")
    "$program/$stage" >"$RESULTS/$stage.part" || { cat "$RESULTS/$stage.part"; rm -f "$RESULTS/$stage.part"; stop "$stage did not pass"; }
    mv "$RESULTS/$stage.part" "$RESULTS/$stage.txt"
done
