# compile.sh - compiles a student's kernel.cu, after it has been looked at for what a lab does not allow.        (the Makefile)
#
#     sh common/labs/compile.sh "g++ ... -include common/labs/04/kernel.h" labs/04/kernel.cu build/cpu/labs/04/kernel.o
#
# The text may hold only __global__ and __device__ functions, types and constants; the object may take only what is listed in
# `admitted` from others, and may hold no variable that keeps its value from one thread to the next. All of its names but those of
# kernel.h become its own, so none can take the place of a function of ours. Exit code: 0, or 1 and why not, in one sentence.
export LC_ALL=C
compiler=$1 source=$2 object=$3
header=${compiler##* }
refuse() {
    printf '%s\n' "$1" >&2
    exit 1
}

# What the twins do for a whole warp without the trace's counting it.
twins=$(sed -n 's/.*NOT_TRACED[^(]*[ &*]\([a-z_]*\)(.*/\1/p' common/cpu/*_cpu.h | paste -sd '|')
examine() { awk -v source="$source" -v twins="$twins" -v expanded="$1" -f common/labs/examine.awk; }
[ "$(tr -d '\000' <"$source" | wc -c)" -eq "$(wc -c <"$source")" ] || refuse "$source: a zero byte is not allowed"
examine <"$source" >&2 || exit 1
# Once more without what macros of the file's own hide. The header's stay as they are: it is not included here.
expanded=$(${compiler%% -include *} -E -P "$source" 2>/dev/null | examine 1) || refuse "$expanded"

errors=$($compiler -fdiagnostics-color=never -fmax-errors=1 -fno-diagnostics-show-caret -c "$source" -o "$object.new" 2>&1) ||
    { printf '%s\n' "$errors" | awk -v source="$source" -f common/labs/errors.awk >&2; exit 1; }

admitted='(simt_(barrier|collective|warpgroup|lane|warp_lanes|shared|need_full_warp|need_aligned|need_shared|copy|copy_commit|copy_wait)
    |simt_(sleep|wake|fail|look_later|when_stuck|block_count|hardware)|threadIdx|blockIdx|blockDim|gridDim|trace_hooks
    |(exp2?|tanh)f|(log|log2|log1p|sqrt|fmax|fmin|fma|nextafter|floor|ceil|round|fabs|sin|cos)f?
    |mem(cpy|set|move)|__(tsan|sanitizer_cov)_[a-z0-9_]*|__assert_fail|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_)'
more=$(sed -n 's/^admits  *//p' "${header%/*}/lab.txt") # what the twins of the lab's instructions call
admitted=$(printf %s "$admitted${more:+|$more}" | tr -d ' \n')
symbols=$(nm "$object.new") || refuse "$source: nm cannot read what was compiled of it"
taken=$(printf '%s\n' "$symbols" | sed -n 's/^ *[Uvw] //p' | grep -vxE "$admitted" | sed 1q | c++filt)
[ ! "$taken" ] || refuse "$source uses $taken: a lab's kernel may call only its own functions and those that its comment names"
kept=$(objdump -t "$object.new" | awk -F '\t' '{count = split($1, flags, " "); section = flags[count]; count = split($2, words, " "); name = words[count]}
    section ~ /^\.(data|bss|tdata|tbss|\*COM\*)/ && section !~ /^\.data\.rel\.ro/ && substr(name, 1, 1) != "." && name !~ /^_Z(GV)?10wgmma_nameI/ {
        print name
        exit
    }' | c++filt)
[ ! "$kept" ] || refuse "$source has a variable, $kept, that is static or outside of all functions: only constants are allowed there"
# Under the trace the compiler adds a constructor of its own to each object, and so does the header of lab 08: one address, 8 bytes.
early=$(objdump -h "$object.new" | awk -v ours="$more$(printf '%s\n' "$symbols" | grep __tsan_init)" \
    '$2 ~ /^\.(init_array|fini_array|preinit_array|ctors|dtors)/ && !(ours != "" && $2 ~ /^\.init_array/ && $3 == "00000008") {print $2}')
[ ! "$early" ] && ! printf '%s\n' "$symbols" | grep -q ' i ' ||
    refuse "$source has code that would run before main(): a constructor of a variable, or an ifunc"

kernels=
for kernel in $(sed -n 's/^extern "C".* \([a-z0-9_]*\)(.*/\1/p' "$header"); do
    printf '%s\n' "$symbols" | grep -q " [TW] $kernel\$" ||
        refuse "$source: the function $kernel is missing, or its parameters have been changed"
    kernels="$kernels -G $kernel"
done
# Without the groups that a linker would merge with those of other objects, so that what becomes local stays whole.
ld -r --force-group-allocation "$object.new" -o "$object.whole" && objcopy $kernels "$object.whole" "$object" &&
    rm -f "$object.new" "$object.whole"
