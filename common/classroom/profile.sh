# profile.sh DEVICE PROGRAM [OPTION...] - hardware counters of the first launch of each kernel, by ncu (make profile-04_fa2).
#
# Of the variant $VARIANT, or else the program's last, at the shape that the options give.
device=$1 program=$2
stage=${program##*/}
shift 2
for ncu in ${NCU:-ncu /usr/local/cuda/bin/ncu}; do command -v "$ncu" >/dev/null && break || ncu=; done
if [ "$device" != cuda ] || [ -z "$ncu" ]; then
    echo "profile-$stage: needs a GPU and ncu (device: $device, ncu: ${ncu:-not found}); make trace-$stage needs neither" >&2
    exit 2
fi
# --help lists the variants in order, the reference behind them.
last=$("$program" --help | awk '/^variants/ {list = 1; next} list && NF {if (name == "" || $1 != "00_naive") name = $1} END {print name}')
sections='SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis WarpStateStats LaunchStats Occupancy'
"$ncu" --log-file stderr --kernel-id :::1 $(printf ' --section %s' $sections) \
    "$program" --variant "${VARIANT:-$last}" --no-validate --iters 1 "$@" >/dev/null
