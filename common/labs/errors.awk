# errors.awk - the first error of a compiler, as a student reads it: the line of their file, the compiler's words, and one sentence.
/error:/ && words == "" {
    words = $0
    sub(/.*error: */, "", words)
}
index($0, source ":") && words != "" && !line { # of an error in a macro the file's own line is in a note
    line = substr($0, index($0, source ":") + length(source) + 1) + 0
}
{ all = all $0 "\n" }

function explain(pattern, sentence) {
    if (all ~ pattern && !explained++)
        print "  " sentence
}
END {
    if (!line) {
        printf "%s: the compiler says:\n%s", source, all
        exit
    }
    print source ":" line ": " words
    while (++read <= line)
        getline text <source
    print "    " text
    explain("shared memory is declared with", "Shared memory has one struct: SHARED_MEMORY(shared, Shared); then use shared.q and so on.")
    explain("expected .[;,].", "Look at the end of the line before: a semicolon is missing there.")
    explain("expected .}.|at end of input", "A brace that was opened is not closed.")
    explain("expected declaration before .}.|expected unqualified-id", "There is one closing brace too many, or a statement outside of a function.")
    explain("was not declared in this scope", "This name is not known here: check its spelling, and that it is declared above, in the same block.")
    explain("conflicting declaration|ambiguates|redeclar|different type", "The kernel's parameters must stay as they were handed out.")
    explain("assignment of read-only|from .const", "The inputs are const: write to the outputs only.")
    explain("typedef-name|redefinition of", "The lab already has something of this name: choose another.")
    explain("no matching function|too (few|many) arguments", "The function takes other arguments: compare their number and types.")
    explain("static assertion", "The condition in the message does not hold: the tiles may be too large for the shared memory of a block.")
    explain("", "Fix this line first: later errors often follow from the first.")
}
