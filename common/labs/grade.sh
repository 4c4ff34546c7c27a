# grade.sh - judges what all students of a course have handed in.                            (make grade SUBMISSIONS=dir)
#
#     sh common/labs/grade.sh submissions          submissions/<student>/<lab>/kernel.cu, as labs/04/kernel.cu of each
#
# JOBS students are judged at a time. Prints a table, a line for each student and lab, and writes the same as JSON rows to
# SUBMISSIONS/grades.json. All of them get the same problems, which SEED decides; without one a number is drawn, and named.
# CPU_SECONDS, else 20, is the processor time that one problem may take, and a compiler six times as long; MEMORY_MB, else 4096, is what a
# program may have.
#
# This is no sandbox: a kernel is machine code that runs as the user who judges it. Use an account or a container that can be
# thrown away.
# Exit code: 0, also where kernels are wrong; 2 if it cannot be done, and one line says why.
name=grade
. common/classroom/tools.sh
: "${MAKE:=make}" "${OUT:=build/cpu}" "${TRACE_OUT:=build/cpu-trace}" "${JOBS:=1}" "${MEMORY_MB:=4096}"
export MAKE OUT TRACE_OUT SEED CPU_SECONDS

# One student's labs, each into a line of verdict.tsv.
if [ "$1" = --student ]; then
    LABS=$2 LAB_OUT=$OUT/grade/${2##*/} TRACED_OUT=$TRACE_OUT/grade/${2##*/} NO_BESTS=1
    CPU_DEVICE_THREADS=1 # JOBS says how many cores there are for all
    export LABS LAB_OUT TRACED_OUT NO_BESTS CPU_DEVICE_THREADS
    ulimit -v $((MEMORY_MB * 1024)) # the address space; the stacks of the simulated threads are part of it
    ulimit -t $((6 * ${CPU_SECONDS:-20})) # for the compiler; a problem may take less
    rm -rf "$LAB_OUT" "$TRACED_OUT"
    for file in "$LABS"/*/kernel.cu; do
        lab=${file%/kernel.cu} lab=${lab##*/}
        mkdir -p "$LAB_OUT/$lab"
        if [ -L "$LABS" ] || [ -L "${file%/kernel.cu}" ] || [ -L "$file" ] || [ ! -f "$file" ]; then
            echo 'this is a link or not a file: hand in the kernel itself' >"$LAB_OUT/$lab/said"
        else
            sh common/labs/lab.sh "$lab" >"$LAB_OUT/$lab/said" 2>&1 </dev/null
        fi
        [ -s "$LAB_OUT/$lab/verdict.tsv" ] || printf '%s\t0\t0\t0\t0\t%s\n' "$lab" "$(sed 1q "$LAB_OUT/$lab/said")" >"$LAB_OUT/$lab/verdict.tsv"
    done
    exit
fi

submissions=${1%/}
[ -d "$submissions" ] || stop "SUBMISSIONS=$1: choose a folder that has a folder for each student, with 04/kernel.cu and so on inside"
: "${SEED:=$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}"
case $JOBS$MEMORY_MB in *[!0-9]*) stop "JOBS=$JOBS MEMORY_MB=$MEMORY_MB: choose whole numbers" ;; esac
students=$(cd "$submissions" && ls -d */ 2>/dev/null | tr -d /)
case $students in '') stop "SUBMISSIONS=$1: there is no folder in it" ;; *[!A-Za-z0-9_.@+[:space:]-]*) stop "the name of a student's folder may have letters, digits, and _ . @ + -" ;; esac

# What the kernels do not change is built once, so that no two students build it at the same time.
progress 'building ...'
hosts=$(cd common/labs && ls */host.cu)
for device in "$OUT" "$TRACE_OUT TRACE=1"; do
    set -- $device
    said=$("$MAKE" --no-print-directory DEVICE=cpu OUT="$1" $2 "$1/common/labs/run.c.o" $(echo "$hosts" | sed "s|.*|$1/common/labs/&.o|") \
        $(for room in common/harness common/judge common/device common/cpu common/host 00_naive ${2:+common/trace}; do echo "$1/$room.a"; done) \
        $([ "$2" ] || echo "$1/lab") 2>&1) || stop "the labs cannot be built: $(echo "$said" | tail -n 1)"
done
progress "judging $(echo "$students" | wc -l) students ..."
for student in $students; do echo "$submissions/$student"; done | xargs -P "$JOBS" -n 1 sh "$0" --student
progress

printf '%-24s %-10s %-11s %-9s %s\n' student lab properties points 'what is not right'
for student in $students; do
    for file in "$OUT/grade/$student"/*/verdict.tsv; do
        [ ! -e "$file" ] || sed "s/^/$student	/" "$file"
    done
done >"$submissions/grades.tsv"
awk -F '\t' '{printf "%-24s %-10s %2d of %-5d %2d of %-3d %s\n", $1, $2, $3, $4, $5, $6, $7}' "$submissions/grades.tsv"
awk -F '\t' -v seed="$SEED" '{
    gsub(/[\\"]/, "\\\\&", $7); gsub(/[^ -~]/, " ", $7)
    printf "{\"student\": \"%s\", \"lab\": \"%s\", \"properties\": %d, \"of\": %d, \"points\": %d, \"most\": %d, \"reason\": \"%s\", \"seed\": %s}\n", $1, $2, $3, $4, $5, $6, $7, seed
}' "$submissions/grades.tsv" >"$submissions/grades.json"
rm -f "$submissions/grades.tsv"
echo "seed $SEED; what each student would see: $OUT/grade/<student>/<lab>/said; as JSON rows: $submissions/grades.json"
