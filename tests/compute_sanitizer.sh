# compute_sanitizer.sh GRID... - the grid programs under compute-sanitizer's four tools (make sanitize, on a GPU).
#
# compute-sanitizer slows a kernel down a hundred times. GRID_EVERY=24 leaves few shapes (grid.c): in every dtype, full and causal,
# head dims 64 and 128, one to five tiles long. What a tool finds is in its log beside the grid, and then this ends with 1.
#
# With 09_fa3_backward it does: racecheck of CUDA 13.0 reports that TMA writes the next LSE and delta while lanes read the last
# ones. We take it for a false alarm. One lane arrives for its warp at the mbarrier that TMA's producer waits for, and it does so after a
# wgmma_wait of the whole warpgroup; what the lanes have read of LSE and delta went into a wgmma before it (warp_arrive in
# common/gpu/warpgroup.cuh). The trace finds no race there.
export LC_ALL=C
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
