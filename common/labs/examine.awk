# examine.awk - what a student's file may not hold, by its text alone. Prints the first such thing with its line; exit code 1.
#
# Comments and strings are taken out first, and lines that end in \ are joined; then the names in the text are whole, because ## is
# not allowed. A function outside of all braces must be __global__ or __device__.
{ text = text $0 "\n" }

function refuse(line, why) {
    print FILENAME ":" line ": " why
    refused = 1
    exit 1
}

# The text without comments and strings, with as many lines.
function strip(text,    code, token, lines) {
    while (match(text, /\\\n|\/\*|\/\/|"([^"\\\n]|\\.)*"|\047([^\047\\\n]|\\.)+\047/)) {
        token = substr(text, RSTART, RLENGTH)
        code = code substr(text, 1, RSTART - 1)
        text = substr(text, RSTART)
        lines = ""
        if (token == "\\\n") {
            joined = joined "\n"
            text = substr(text, 3)
            continue
        }
        if (token == "/*")
            RLENGTH = index(text, "*/") ? index(text, "*/") + 1 : length(text)
        else if (token == "//")
            RLENGTH = index(text, "\n") - 1
        lines = substr(text, 1, RLENGTH)
        gsub(/[^\n]/, "", lines)
        code = code " " lines
        text = substr(text, RLENGTH + 1)
    }
    return code text
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
    code = "\n" strip(text) # so that before each name there is a character
    if (match(code, /(^|\n)[ \t]*(#|%:)[ \t]*(include|import)[^\n]*/))
        refuse(line_of(RSTART + 1), "#include is not allowed: what the kernel may call is there already")
    if (match(code, /##|%:%:/))
        refuse(line_of(RSTART), "## is not allowed: names must be readable")
    if (match(code, /\n[ \t]*#[ \t]*define[^\n]*#/))
        refuse(line_of(RSTART + 1), "# inside of a macro is not allowed")
    for (i = split(code, lines, "\n"); i > 0; i--)
        if (lines[i] ~ /^[[:space:]]*(#|%:)/ && lines[i] !~ /^[ \t]*#[ \t]*(define|undef|pragma[ \t]+unroll)([^A-Za-z0-9_]|$)/)
            refuse(i - 1, "of lines with # only #define, #undef and #pragma unroll are allowed")
    forbid("(__)?(asm|asm__|volatile__)", "inline assembly is not allowed in a lab")
    forbid("(__attribute(__)?|__declspec)", "attributes are not allowed in a lab")
    if (match(code, /\[\[/))
        refuse(line_of(RSTART), "attributes are not allowed in a lab")
    forbid("extern", "extern is not allowed: the kernel is declared already, and others' names are not for it")
    forbid("mem(cpy|set|move)", "memcpy and memset are not counted: write the loop")
    forbid("_Pragma", "_Pragma is not allowed: write UNROLL or #pragma unroll")
    forbid("(__builtin_|simt_|trace_|__tsan_|__sanitizer_|TRACE|__wrap_|__real_)[A-Za-z0-9_]*", "this name belongs to the CPU device or to the compiler, not to a kernel")
    examine_functions()
}
