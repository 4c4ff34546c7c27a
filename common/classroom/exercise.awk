# exercise.awk - holds an answer, or a kernel's score, against what programs printed. Behind rows.awk; exercise.sh writes an END
# with the expressions of the exercise, which fill right, part and meaning, or yours, wanted and of.
#
# The answer is $ANSWER, `within` the share that it may be off. With `free` the expression itself says "right", or why not. With
# `solve` the right answer is printed instead. Exit code: 0 right, 1 not yet, 2 it cannot be checked.
BEGIN { OFMT = CONVFMT = "%.15g" }

function stop(why) {
    print "exercise: " why >"/dev/stderr"
    exit 2
}

function need_rows(    run) { # of each of the `runs` programs
    for (run = 1; run <= runs; run++)
        if (!count("run=" run))
            stop(cell[rows, "said"])
}

function check(    i, given, words, wrong, what) {
    for (i = 1; solve && i <= answers; i++)
        printf "%s%s", right[i], i < answers ? "," : "\n"
    if (solve)
        exit
    if (free) {
        if (right[1] != "right")
            print "not yet: " right[1]
        exit right[1] != "right"
    }
    words = split(ENVIRON["ANSWER"], given, /[, \t]+/)
    if (words != answers) { # a comma before three digits may group those of one number
        what = ENVIRON["ANSWER"]
        while (match(what, /,[0-9][0-9][0-9]([^0-9]|$)/))
            what = substr(what, 1, RSTART - 1) substr(what, RSTART + 1)
        words = split(what, given, /[, \t]+/)
    }
    for (i = 1; i <= words && i <= answers; i++)
        if (is_number(right[i]) && !is_number(given[i]))
            stop("ANSWER=" given[i] ": choose numbers, with commas between")
    if (words != answers)
        stop("ANSWER has " words " numbers and not " answers ": " ENVIRON["ASK"])
    for (i = 1; i <= answers; i++)
        if (is_number(right[i]) ? size(given[i] - right[i]) > slack(right[i]) + 1e-9 : given[i] "" != right[i] "") {
            printf "%s", wrong++ ? "         " : "not yet: "
            help(i, given[i])
        }
    exit wrong > 0
}

# How far a number may be off: the share that the exercise says or, unless it is whole, and so a count, what rounding it by hand to
# three digits changes.
function slack(right,    place) {
    for (place = 1e15; place > size(right) && place > 1e-15; place /= 10)
        ;
    return right == int(right) || within * size(right) > place / 200 ? within * size(right) : place / 200
}

# In which direction a number is wrong, and what it is instead, if it is one of the known parts.
function help(i, given,    n) {
    if (!is_number(right[i])) {
        print "number " i " is not " given "."
        return
    }
    print (answers > 1 ? "number " i ", " given "," : given) " is too " (given + 0 < right[i] ? "low" : "high") ". " \
        (within ? "Up to " 100 * within " % off would do." : right[i] == int(right[i]) ? "The exact number is wanted." : "Three digits will do.")
    for (n = 1; n <= parts; n++)
        if (size(given - part[n]) <= (within ? within : 1e-9) * size(part[n]))
            print "  " given " is " meaning[n] "."
}

# What the student's kernel has beside what it may have, and the first that is too much.
function score(    i, failed) {
    if (!count("wrong=.*")) {
        print "not yet: the device stopped it:"
        for (i = 1; i <= rows; i++)
            print "    " cell[i, "said"]
        exit 1
    }
    printf "%-36s %12s %17s\n", "", "yours", "wanted at most"
    for (i = 1; i <= scores; i++) {
        printf "%-36s %12s %17s\n", of[i], unit(i, yours[i]), unit(i, wanted[i])
        if (failed == "" && yours[i] > wanted[i])
            failed = of[i]
    }
    if (failed == "")
        exit
    print "not yet: " failed "."
    for (i = rows; i > 0; i--)
        if ((i, "said") in cell)
            print "    " cell[i, "said"]
    exit 1
}
function unit(i, n) { return of[i] ~ /^bytes/ ? sprintf("%.3f MB", n / 1e6) : sprintf("%.0f", n) }

function size(x) { return x < 0 ? -x : x }
function is_number(x) { return x ~ /^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?%?$/ }
