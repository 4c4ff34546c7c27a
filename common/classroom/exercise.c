/* exercise.c - says whether an exercise of the notes is solved.                                      (make exercise N=04.1)
 *
 *     exercise                    lists them
 *     exercise 04.1               what is asked; for an exercise with a file, hands it out or tries it
 *     exercise 04.1 50176         checks an answer: numbers, with commas between
 *     HINT=1 exercise 04.1        a hint; 2: and a second one
 *     exercise --solve 04.1       prints the answer
 *
 * Exit code: 0 right, or told what is asked; 1 not yet; 2 it cannot be checked, and one line says why. `make exercise` ends well
 * with 1, too, so that make adds nothing to what is said here: scripts that want to know call this program.
 * The exercises stand in notes/exercises/, whose README.md says how one is written. MAKE, OUT, TRACE_OUT and DEVICE are make's. */
#define _POSIX_C_SOURCE 200809L
#include "../host/errors.h"
#include "../host/text.h"
#include "command.h"
#include "trial.h"

#include <glob.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LINES = 2000 };

static struct { const char *key, *value; } lines[MAX_LINES]; /* of all files */
static int line_count;

/* The exercise at hand. */
static int at;                      /* the line it begins at */
static const char *number, *stage;  /* "04.1", "04_fa2" */
static const char *original, *file; /* the kernel file it is about, and the student's own; "" if there is none */
static Trial trial;                 /* the stage with the student's file */
static const char *make, *out, *trace_out, *device;

__attribute__((noreturn)) static void end(int code) {
    flush_output();
    exit(code);
}

__attribute__((format(printf, 2, 3), noreturn)) static void say(int code, const char *text, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof line, text, arguments);
    print_text("%s%s\n", code ? "not yet: " : "", line);
    va_end(arguments);
    end(code);
}

static const char *from_environment(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

/* ---- the files of notes/exercises/ ---- */

/* A key and its value a line; # begins a comment. The file's name, NN_name.txt, is the stage's, unless a line
 * `stage` says another. */
static void read_exercises(char *path) {
    char *save;
    for (char *line = strtok_r(read_file(path), "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (*line == '#' || line_count + 2 > MAX_LINES)
            continue;
        char *value = line + strcspn(line, " ");
        if (*value)
            *value++ = 0;
        lines[line_count].key = line;
        lines[line_count++].value = value + strspn(value, " ");
        if (strcmp(line, "exercise") == 0) {
            lines[line_count].key = "stage";
            lines[line_count++].value = name_of(path);
        }
    }
    path[strlen(path) - strlen(".txt")] = 0;
}

/* Is this line of the exercise at hand? Then it has a key. */
static int in_exercise(int line) { return line < line_count && (line == at || strcmp(lines[line].key, "exercise") != 0); }
static int has_key(int line, const char *key) { return strcmp(lines[line].key, key) == 0; }

/* The value of the nth line with this key, from 1 on, or NULL. */
static const char *nth_value(int n, const char *key) {
    for (int line = at; in_exercise(line); line++)
        if (has_key(line, key) && --n == 0)
            return lines[line].value;
    return NULL;
}
static const char *value(const char *key) { return nth_value(1, key); }

/* Makes the exercise at this line the one at hand. */
static void choose(int line) {
    at = line;
    number = value("exercise");
    stage = nth_value(2, "stage") ? nth_value(2, "stage") : value("stage");
    const char *copy = value("change") ? value("change") : value("blank") ? value("blank") : value("write");
    original = copy ? text_of("%.*s", (int)strcspn(copy, ":"), copy) : "";
    file = copy ? text_of("%sexercises/%s/%s", *out == '/' ? text_of("%s/", out) : "", number, name_of(original)) : "";
    trial = (Trial){number, stage, value("variant"), original, file, NULL};
}

static void list(void) {
    for (int line = 0; line < line_count; line++) {
        if (!has_key(line, "exercise"))
            continue;
        choose(line);
        print_text("%s  ", number);
        if (value("blank"))
            print_text("fill in %s: ", original);
        else if (value("change"))
            print_text("change %s; ", value("change"));
        else if (value("write"))
            print_text("write a kernel: ");
        print_text("%s\n", value("ask"));
    }
    print_text("What is given stands in the note: exercise 04.1 is number 1 under Exercises in notes/04_fa2.md.\n"
               "make exercise N=04.1: what is asked. With ANSWER=... (several: ANSWER=p,q): is it right? With HINT=1 or "
               "HINT=2: a hint.\n");
}

/* ---- programs ---- */

static void must_compile(void) { /* the student's file */
    if (trial.error)
        say(1, "it does not compile: %.*s", (int)strcspn(trial.error, "\n"), trial.error);
}

/* The path of the stage's program, built with the student's file in its place if there is one. `trace`: with TRACE=1. */
static const char *built(int trace) {
    const char *words = trace ? "cpu TRACE=1" : device, *folder = trace ? trace_out : out;
    const char *program = text_of("%s/%s", stage, stage);
    if (*file)
        folder = trial_build(&trial, words, folder, program);
    must_compile();
    program = text_of("%s/%s", folder, program);
    if (*file)
        return program;
    show_progress("building ...");
    Command c = command("'%s' --no-print-directory DEVICE=%s OUT='%s' '%s' 2>&1", make, words, folder, program);
    end_progress();
    if (c.code)
        cannot_run("%s cannot be built: %.*s", program, (int)strcspn(c.out, "\n"), c.out);
    return program;
}

/* ---- questions ---- */

/* Hands out the student's copy, if it is not there. What is there is never written over. */
static int make_copy(void) {
    if (!*file || access(file, F_OK) == 0)
        return 0;
    if (command("mkdir -p \"$(dirname '%s')\" && cat '%s' >'%s'", file, original, file).code)
        cannot_run("%s cannot be written", file);
    return 1;
}

/* Where the word ANSWER stands in options, the student's answer belongs: at their end. */
static const char *answer_in(const char *options) {
    const char *place = strstr(options, "ANSWER");
    return place ? place : options + strlen(options);
}

/* Runs programs and hands the rows that they print to awk: their JSON objects, and {"said": ...} for each other line. */
static Command rows_of(const char *programs, const char *script) {
    show_progress("running ...");
    Command c = command("(%s) | sed '/^[^{]/ { s/\"//g; s/.*/{\"said\": \"&\"}/; }' | "
                        "awk \"$(cat common/classroom/rows.awk)\"' END { OFMT = \"%%.15g\"\n%s }'",
                        programs, script);
    end_progress();
    return c;
}

/* What the kernels do: the answers, one a line, then the known parts. The rows of all `trace` and `measure` lines, with a field
 * `run` that counts those lines, are what the `answer` lines are computed from. Variables of the environment may stand before
 * the options. */
static char *computed(const char *answer) {
    const char *runs = ":", *script = "", *parts = "";
    make_copy();
    for (int line = at, run = 0; in_exercise(line); line++) {
        const char *text = lines[line].value, *options = strstr(text, "--");
        if (has_key(line, "answer"))
            script = text_of("%sprint (%s)\n", script, text);
        if (has_key(line, "part")) /* "the tiles alone: 32 * 1536" */
            parts = text_of("%sprint (%s)\n", parts, strchr(text, ':') + 1);
        int traced = has_key(line, "trace"), before = options ? (int)(options - text) : 0;
        if (!traced && !has_key(line, "measure"))
            continue;
        int fixed = (int)(answer_in(text) - text);
        script =
            text_of("%sif (!count(\"run=%d\")) { print cell[rows, \"said\"] >\"/dev/stderr\"; exit 1 }\n", script, ++run);
        runs =
            text_of("%s; %.*s '%s' %s --json %.*s %s 2>&1 | sed 's/^{/{\"run\": %d, /'", runs, before, text, built(traced),
                    traced ? "--trace" : "", fixed - before, text + before, text[fixed] ? answer : "", run);
    }
    Command c = rows_of(runs, text_of("%s%s", script, parts));
    if (c.code)
        cannot_run("%s", c.reason);
    return c.out;
}

/* A text from its nth line on; that line alone. */
static const char *from_line(const char *text, int n) {
    for (; n > 1; n--)
        text += strcspn(text, "\n"), text += *text == '\n';
    return text;
}
static const char *line_of(const char *text, int n) {
    text = from_line(text, n);
    return text_of("%.*s", (int)strcspn(text, "\n"), text);
}

static int is_number(const char *word, double *x) {
    char *end;
    *x = strtod(word, &end);
    return end > word && (!*end || strcmp(end, "%") == 0) && isfinite(*x);
}

/* What helps with number i of count, which is not x but y: in which direction it is wrong, and what it is instead, if it is one of
 * the known parts. These stand behind the answers in `all`. */
static void help(int i, int count, const char *given, double x, double y, double within, const char *all) {
    char *what = count > 1 ? text_of("number %d, %.100s,", i, given) : text_of("%.100s", given);
    print_text("%s is too %s.", what, x < y ? "low" : "high");
    if (within)
        print_text(" Up to %g %% off would do.\n", 100 * within);
    else
        print_text(" The exact number is wanted.\n");
    for (int n = 1; nth_value(n, "part"); n++) {
        const char *part = nth_value(n, "part");
        double known = atof(line_of(all, count + n));
        if (fabs(x - known) <= (within ? within : 1e-9) * fabs(known))
            print_text("  %.100s is %.*s.\n", given, (int)strcspn(part, ":"), part);
    }
}

/* Behind what is wrong. */
__attribute__((noreturn)) static void end_with_hint(void) {
    const char *hint = value("hint");
    if (hint)
        print_text("  Hint: %s%s\n", hint, hint[strlen(hint) - 1] == '?' ? "" : ".");
    if (nth_value(2, "hint"))
        print_text("  Another hint: make exercise N=%s HINT=2\n", number);
    end(1);
}

/* Takes an answer apart and returns how many words it has. With `joined` a comma before three digits groups those of one number. */
static int words_of(const char *answer, int joined, const char *words[64]) {
    char *text = text_of("%s", answer), *to = text, *save;
    int count = 0;
    for (; *answer; answer++)
        if (!joined || *answer != ',' || strspn(answer + 1, "0123456789") != 3)
            *to++ = *answer;
    *to = 0;
    for (char *word = strtok_r(text, ", \t", &save); word && count < 64; word = strtok_r(NULL, ", \t", &save))
        words[count++] = word;
    return count;
}

/* Compares the answer with the right one, number by number, or word by word. */
static void check(char *answer) {
    double within = value("within") ? atof(value("within")) : 0;
    int count = 0, wrong = 0;
    if (value("measure") && *answer_in(value("measure"))) { /* what comes out is "right", or why not */
        if (answer[strspn(answer, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,=-")])
            cannot_run("ANSWER=%s: choose options, as the program takes them", answer);
        const char *verdict = line_of(computed(answer), 1);
        if (strcmp(verdict, "right") == 0)
            say(0, "right");
        print_text("not yet: %s\n", verdict);
        end_with_hint();
    }
    while (nth_value(count + 1, "answer"))
        count++;
    const char *right = computed(""), *given[64];
    int given_count = words_of(answer, 0, given);
    if (given_count != count)
        given_count = words_of(answer, 1, given);
    for (int i = 1; i <= given_count && i <= count; i++) {
        double x;
        if (is_number(line_of(right, i), &x) && !is_number(given[i - 1], &x))
            cannot_run("ANSWER=%s: choose numbers, with commas between", given[i - 1]);
    }
    if (given_count != count)
        cannot_run("ANSWER has %d numbers and not %d: %s", given_count, count, value("ask"));
    for (int i = 1; i <= count; i++) {
        double x, y;
        const char *want = line_of(right, i), *got = given[i - 1];
        int numbers = is_number(want, &y) && is_number(got, &x);
        if (numbers ? fabs(x - y) <= within * fabs(y) + 1e-9 : strcmp(got, want) == 0)
            continue;
        print_text("%s", wrong++ ? "         " : "not yet: ");
        if (numbers)
            help(i, count, got, x, y, within, right);
        else
            print_text("number %d is not %.100s.\n", i, got);
    }
    if (!wrong)
        say(0, "right");
    end_with_hint();
}

/* Whether the change has been made: what is new stands in the student's file, what goes does not, behind `after`. */
static int is_changed(void) {
    const char *text = read_file(file), *after = value("after") ? strstr(text, value("after")) : text;
    return (!value("changed") || strstr(text, value("changed"))) &&
           (!value("gone") || (after && !strstr(after, value("gone"))));
}

static void question(char *answer) {
    int is_new = make_copy();
    const char *change = *file ? value("change") + strlen(original) + 2 : NULL; /* after "04_fa2/split_q.cu: " */
    if (!answer) {
        print_text("%s  %s\nWhat is given, and the whole question: notes/%s.md, under Exercises.\n", number, value("ask"),
                   value("stage")); /* the first is the note's name */
        if (change && is_new)
            print_text("%s is a copy of %s to work on. In it: %s.\n", file, original, change);
        else if (change)
            print_text("Your copy is %s. In it: %s.\n", file, change);
        print_text("Then: make exercise N=%s ANSWER=%s", number, nth_value(2, "answer") ? "p" : "...");
        for (int i = 2; nth_value(i, "answer"); i++) /* p,q,r: not a,b,c, which may be answers */
            print_text(",%c", 'p' + i - 1);
        print_text(" or HINT=1.");
        if (value("within"))
            print_text(" Up to %g %% off will do.", 100 * atof(value("within")));
        print_text("\n");
        return;
    }
    if (change && !is_changed())
        say(1, "in %s is still to be done: %s", file, change);
    check(answer);
}

/* ---- lines to fill in ---- */

static const char *in_text(const char *text, const char *part) {
    const char *found = strstr(text, part);
    if (!found)
        cannot_run("N=%s: '%s' is not in %s any more", number, part, original);
    return found;
}

/* Writes the original without its blank: from the line with `from`, the first after `after`, to the line with `to` and on to where
 * the braces opened in between are closed. */
static void cut(void) {
    const char *text = read_file(original), *after = value("after"), *stub = value("stub");
    const char *from = in_text(after ? in_text(text, after) : text, value("from"));
    if (!after && strstr(from + 1, value("from")))
        cannot_run("N=%s: '%s' is in %s twice, say which with `after`", number, value("from"), original);
    const char *last = in_text(from, value("to")), *end;
    while (from > text && from[-1] != '\n')
        from--;
    int missing = 0, first = 1, depth = 0, indent = (int)strspn(from, " ");
    for (const char *c = text; c < from; c++)
        first += *c == '\n';
    for (end = from; *end && (end <= last || depth > 0 || end[-1] != '\n'); end++) {
        depth += *end == '{' ? 1 : *end == '}' ? -1 : 0;
        missing += *end == '\n';
    }
    make_copy(); /* and its folder */
    FILE *to = fopen(file, "wb");
    if (!to)
        cannot_run("%s cannot be written", file);
    fprintf(to, "%.*s%*s/* YOUR LINES: %s */\n", (int)(from - text), text, indent, "", value("ask"));
    if (stub)
        fprintf(to, "%*s%s\n", indent, "", stub);
    fprintf(to, "%s", end);
    fclose(to);
    print_text("%s  %s is %s with %d lines missing, at line %d: %s.\nWrite them, then: make exercise N=%s\n", number, file,
               original, missing, first, value("ask"), number);
}

/* The simplest problem on which the student's file is wrong, and how. */
static void try_file(void) {
    Failure f = trial_failure(&trial, device, out, 0);
    must_compile();
    if (!f.seen_by)
        say(0, "right");
    if (*f.problem)
        print_text("not yet: %s%s%swrong for %s.\n", f.right ? "right for " : "", f.right ? f.right : "",
                   f.right ? ", " : "", f.problem);
    else
        print_text("not yet: small problems are right, %s sees that it is wrong.\n", f.seen_by);
    printf("%s%s%s%s", f.said, f.command ? "  See it again: " : "", f.command ? f.command : "", f.command ? "\n" : "");
    end_with_hint();
}

/* ---- kernels to write ---- */

/* The score of the student's kernel under the trace, beside the one that is wanted: lines "words: expression <= expression". */
static void score(void) {
    const char *script = "";
    if (make_copy()) {
        print_text("%s  %s.\n%s is the start: it compiles, and is wrong. Write it, then: make exercise N=%s\n", number,
                   value("ask"), file, number);
        return;
    }
    const char *folder = trial_build(&trial, "cpu TRACE=1", trace_out, value("program"));
    must_compile();
    for (int n = 1; nth_value(n, "score"); n++) {
        const char *expression = strchr(nth_value(n, "score"), ':') + 1, *wanted = strstr(expression, "<=");
        script = text_of("%sprint (%.*s)\nprint (%s)\n", script, (int)(wanted - expression), expression, wanted + 2);
    }
    Command c = rows_of(
        text_of("timeout 120 '%s/%s' 2>&1", folder, value("program")),
        text_of("if (!count(\"wrong=.*\")) { for (i = 1; i <= rows; i++) print \"    \" cell[i, \"said\"]; exit 1 }\n"
                "%sfor (i = rows; i > 0; i--) if ((i, \"said\") in cell) print \"    \" cell[i, \"said\"]\n",
                script));
    if (c.code)
        say(1, "the device stopped it:\n%s", c.out);
    const char *failed = NULL;
    print_text("%-36s %12s %17s\n", "", "yours", "wanted at most");
    int n = 1;
    for (; nth_value(n, "score"); n++) {
        double yours = atof(line_of(c.out, 2 * n - 1)), wanted = atof(line_of(c.out, 2 * n));
        int length = (int)strcspn(nth_value(n, "score"), ":"), bytes = strncmp(nth_value(n, "score"), "bytes", 5) == 0;
        print_text("%-36.*s %*.*f%s %*.*f%s\n", length, nth_value(n, "score"), bytes ? 9 : 12, bytes ? 3 : 0,
                   bytes ? yours / 1e6 : yours, bytes ? " MB" : "", bytes ? 14 : 17, bytes ? 3 : 0,
                   bytes ? wanted / 1e6 : wanted, bytes ? " MB" : "");
        failed = !failed && !(yours <= wanted) ? text_of("%.*s", length, nth_value(n, "score")) : failed;
    }
    if (!failed)
        say(0, "right");
    print_text("not yet: %s.\n%s", failed, from_line(c.out, 2 * n - 1));
    end_with_hint();
}

int main(int argc, char **argv) {
    program_is("exercise");
    make = from_environment("MAKE", "make");
    out = from_environment("OUT", "build/cpu");
    trace_out = from_environment("TRACE_OUT", "build/cpu-trace");
    device = from_environment("DEVICE", "cpu");
    glob_t files;
    if (glob("notes/exercises/*.txt", 0, NULL, &files) != 0)
        cannot_run("notes/exercises: there are no exercises");
    for (size_t i = 0; i < files.gl_pathc; i++)
        read_exercises(files.gl_pathv[i]);

    int solve = argc > 1 && strcmp(argv[1], "--solve") == 0;
    const char *asked = argc > 1 + solve ? argv[1 + solve] : "", *hint = getenv("HINT");
    if (!*asked) {
        if (argc > 2)
            cannot_run("ANSWER=%s: choose the exercise too, like N=04.1 (make exercise lists them)", argv[2]);
        list();
        end(0);
    }
    int line = 0;
    while (line < line_count && (!has_key(line, "exercise") ||
                                 (strcmp(lines[line].value, asked) != 0 && strcmp(lines[line].value + 1, asked) != 0)))
        line++;
    if (line == line_count)
        cannot_run("N=%s: there is no such exercise, make exercise lists them", asked);
    choose(line);
    if (value("needs") && strcmp(device, "cuda") != 0)
        cannot_run("N=%s needs a GPU: what it asks for is measured there", number);
    if (solve && (!value("answer") || (value("measure") && *answer_in(value("measure")))))
        cannot_run("N=%s has no numbers to print", number);
    if (hint && *hint && strcmp(hint, "1") != 0 && strcmp(hint, "2") != 0)
        cannot_run("HINT=%s: choose 1 or 2", hint);
    if (solve) {
        const char *right = computed("");
        for (int i = 1; nth_value(i, "answer"); i++)
            printf("%s%s", i > 1 ? "," : "", line_of(right, i));
        printf("\n");
    } else if (hint && *hint)
        for (int i = 1; i <= atoi(hint); i++)
            print_text("%s\n", nth_value(i, "hint") ? nth_value(i, "hint") : "There is no other hint.");
    else if (value("write"))
        score();
    else if (!value("blank"))
        question(argc > 2 ? argv[2] : NULL);
    else if (access(file, F_OK) != 0)
        cut();
    else
        try_file();
    end(0);
}
