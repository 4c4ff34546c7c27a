# profile.sh DEVICE PROGRAM [OPTION...] - hardware counters of the first launch of each kernel, by ncu (make profile-04_fa2).
#
# Of the variant $VARIANT, or else the program's last, at the shape that the options give.
device=$1 program=$2 name=profile-${2##*/}
. common/classroom/tools.sh
shift 2
for ncu in ${NCU:-ncu /usr/local/cuda/bin/ncu}; do command -v "$ncu" >/dev/null && break || ncu=; done
[ "$device" = cuda ] && [ "$ncu" ] ||
    stop "needs a GPU and ncu (device: $device, ncu: ${ncu:-not found}); make trace-${program##*/} needs neither"
sections='SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis WarpStateStats LaunchStats Occupancy'
"$ncu" --log-file stderr --kernel-id :::1 $(printf ' --section %s' $sections) \
    "$program" --variant "${VARIANT:-$(variants "$program" | tail -n 1)}" --no-validate --iters 1 "$@" >/dev/null
