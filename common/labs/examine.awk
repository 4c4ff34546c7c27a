# examine.awk - what a student's file may not hold, by its text alone. Prints the first such thing with its line; exit code 1.
#
#     awk -v source=labs/04/kernel.cu -v twins='compute_mma|...' -f examine.awk <labs/04/kernel.cu
#
# twins: functions of the CPU device that the trace does not see. With -v expanded=1 the text is what has become of it when its own macros
# are expanded, and lines are not named.
#
# Lines that end in \ are joined, and comments and strings are taken out, as a compiler does; whatever could make the two disagree, such as
# raw strings, is refused. Then the names in the text are whole, because ## is not allowed. A function outside of all braces must be
# __global__ or __device__.
{
    sub(/\r$/, "")
    plain = $0
    gsub(/\t/, " ", plain)
    if (plain ~ /[[:cntrl:]]/)
        refuse(NR, "a control character is not allowed")
    if (sub(/\\[ \t]*$/, ""))
        joined = joined "\n"
    else {
        $0 = $0 "\n" joined
        joined = ""
    }
    text = text $0
}

function refuse(line, why) {
    print source ":" (expanded ? " with its macros expanded:" : line ":") " " why
    refused = 1
    exit 1
}

# `code` becomes the text without comments and strings, with as many lines.
function strip(text,    token, lines) {
    while (match(text, /\/\*|\/\/|"([^"\\\n]|\\.)*"|\047([^\047\\\n]|\\.)+\047/)) {
        token = substr(text, RSTART, RLENGTH)
        code = code substr(text, 1, RSTART - 1)
        text = substr(text, RSTART)
        if (token ~ /^["\047]/ && code ~ /[A-Za-z0-9_]$/)
            refuse(line_of(length(code)), "a string or character with a letter or digit before it, such as R\"(...)\" or 1\0470, is not allowed")
        if (token == "/*")
            RLENGTH = index(text, "*/") ? index(text, "*/") + 1 : length(text)
        else if (token == "//")
            RLENGTH = index(text, "\n") - 1
        lines = substr(text, 1, RLENGTH)
        gsub(/[^\n]/, "", lines)
        code = code " " lines
        text = substr(text, RLENGTH + 1)
    }
    code = code text
}

function line_of(place,    before) { before = substr(code, 1, place); return gsub(/\n/, "", before) }

# The first place of a name, whole; 0: there is none.
function find(name,    rest, past) {
    for (rest = code; match(rest, name); rest = substr(rest, RSTART + RLENGTH)) {
        past += RSTART - 1
        if (substr(code, past, 1) !~ /[A-Za-z0-9_]/ && substr(code, past + RLENGTH + 1, 1) !~ /[A-Za-z0-9_]/)
            return past + 1
        past += RLENGTH
    }
    return 0
}
function forbid(name, why,    place) {
    place = find(name)
    if (place)
        refuse(line_of(place), why)
}

# Function bodies outside of all braces, and what stands before them.
function examine_functions(    i, c, depth, head, begin) {
    begin = 1
    for (i = 1; i <= length(code); i++) {
        c = substr(code, i, 1)
        if (c == "{" && depth++ == 0) {
            head = substr(code, begin, i - begin)
            if (head ~ /\)[^=]*$/ && head !~ /(^|[^A-Za-z_])(__global__|__device__|static_assert)([^A-Za-z_]|$)/)
                refuse(line_of(i), "a function that is neither __global__ nor __device__ would run on the host: the lab has its own host code")
        }
        if (c == "}" && --depth == 0 || c == ";" && depth == 0)
            begin = i + 1
    }
}

END {
    if (refused)
        exit 1
    code = "\n" # so that before each name there is a character
    strip(text joined)
    if (match(code, /(^|\n)[ \t]*(#|%:)[ \t]*(include|import)[^\n]*/))
        refuse(line_of(RSTART + 1), "#include is not allowed: everything that the kernel may call is already there")
    if (match(code, /##|%:%:/))
        refuse(line_of(RSTART), "## is not allowed: names must be readable")
    if (match(code, /\n[ \t]*#[ \t]*define[^\n]*#/))
        refuse(line_of(RSTART + 1), "# inside of a macro is not allowed")
    for (i = split(code, lines, "\n"); i > 0; i--)
        if (lines[i] ~ /^[[:space:]]*(#|%:)/ && lines[i] !~ /^[ \t]*#[ \t]*(define|undef|pragma[ \t]+unroll)([^A-Za-z0-9_]|$)/)
            refuse(i - 1, "of all lines with #, only #define, #undef, and #pragma unroll are allowed")
    if (match(code, /<:|:>|<%|%>|%:|\?\?[=(\/)\047<!>-]/))
        refuse(line_of(RSTART), "digraphs and trigraphs are not allowed: write [ ] { } #")
    forbid("(__)?(asm|asm__)", "inline assembly is not allowed in a lab")
    forbid("(__attribute(__)?|__declspec)", "attributes are not allowed in a lab")
    if (match(code, /\[[[:space:]]*\[/))
        refuse(line_of(RSTART), "attributes are not allowed in a lab")
    forbid("extern", "extern is not allowed: the kernel is declared already, and others' names are not for it")
    forbid("(__)?volatile(__)?", "volatile is not allowed: the trace does not count such reads")
    forbid("std", "std:: is not allowed: write it as in CUDA, or write the loop")
    forbid("mem(cpy|set|move)", "memcpy and memset are not counted: write the loop")
    forbid("_Pragma", "_Pragma is not allowed: write UNROLL or #pragma unroll")
    forbid("(__builtin_|__atomic_|__sync_|__gnu|__cxa|__SANITIZE|NOT_TRACED|TELL_TRACE|CALLER|simt_|trace_|__tsan_|__sanitizer_|TRACE|__wrap_|__real_)[A-Za-z0-9_]*", "this name belongs to the CPU device or to the compiler, not to a kernel")
    forbid("(" twins ")", "this function belongs to the CPU device, not to a kernel")
    examine_functions()
}
