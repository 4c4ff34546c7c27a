# compute_sanitizer.sh GRID... - the grid programs under compute-sanitizer's four tools (make sanitize, on a GPU).
#
# compute-sanitizer slows a kernel down a hundred times, so it gets a third of the quick grid's points: about 50 a variant, in
# every dtype, head dim and mask, one to five tiles long. What a tool finds is in its log beside the grid.
#
# racecheck of CUDA 13.0 finds 09_fa3_backward: TMA's next LSE and delta against the reads of the last ones. Behind these reads
# are a __syncwarp and the arrival of one lane for its warp. No instruction is left of the __syncwarp where the lanes are
# together anyway, so racecheck cannot know of the other 31. The trace can, and finds no race; without the __syncwarp it finds
# the same two (make test-trace).
found=
for grid; do
    for tool in memcheck racecheck synccheck initcheck; do
        start=$(date +%s)
        log=$grid-$tool.log
        printf '%-9s %-23s ' $tool "${grid##*/}"
        GRID_EVERY=${GRID_EVERY:-24} compute-sanitizer --tool $tool --error-exitcode 1 --log-file "$log" "$grid" --quick >/dev/null ||
            found="$found $log"
        echo "$(tail -n 1 "$log"), $(($(date +%s) - start)) s"
    done
done
[ -z "$found" ] || { echo "not clean:$found" && exit 1; }
