/* exercise.c - says whether an exercise of the notes is solved.                                      (make exercise N=04.1)
 *
 *     exercise                    lists them
 *     exercise 04.1               what is asked; for an exercise with a file, hands it out or tries it
 *     exercise 04.1 52224         checks an answer: numbers, with commas between
 *     exercise --solve 04.1       prints the answer
 *
 * Exit code: 0 right, or told what is asked; 1 not yet; 2 it cannot be checked, and one line says why.
 * The exercises stand in notes/exercises/, whose README.md says how one is written. MAKE, OUT, TRACE_OUT and DEVICE are make's. */
#define _POSIX_C_SOURCE 200809L
#include "../host/errors.h"
#include "../host/text.h"
#include "../host/text.h"
#include "command.h"

#include <glob.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LINES = 2000, PATH = 256 };

static struct { const char *key, *value; } lines[MAX_LINES]; /* of all files */
static int line_count;

/* The exercise at hand. */
static int at;                              /* the line it begins at */
static const char *number, *stage;          /* "04.1", "04_fa2" */
static char original[PATH], file[2 * PATH]; /* the kernel file it is about, and the student's own; "" if there is none */
static const char *make, *out, *trace_out, *device;

static void say(int code, const char *text, ...) __attribute__((format(printf, 2, 3), noreturn));
static void say(int code, const char *text, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof line, text, arguments);
    print_text("%s%s\n", code ? "not yet: " : "", line);
    va_end(arguments);
    exit(code);
}

static const char *from_environment(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

/* ---- the files of notes/exercises/ ---- */

static char *read_file(const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in)
        cannot_run("%s cannot be read", path);
    fseek(in, 0, SEEK_END);
    long size = ftell(in);
    rewind(in);
    char *text = calloc((size_t)size + 1, 1);
    if (!text || fread(text, 1, (size_t)size, in) != (size_t)size)
        cannot_run("%s cannot be read", path);
    fclose(in);
    return text;
}

/* A key and its value a line; # begins a comment. The file's name, NN_name.txt, is the stage's. */
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

static const char *value(const char *key) {
    for (int line = at; in_exercise(line); line++)
        if (has_key(line, key))
            return lines[line].value;
    return NULL;
}

/* Makes the exercise at this line the one at hand. */
static void choose(int line) {
    at = line;
    number = value("exercise");
    stage = value("stage");
    const char *copy = value("change") ? value("change") : value("blank");
    snprintf(original, sizeof original, "%.*s", copy ? (int)strcspn(copy, ":") : 0, copy ? copy : "");
    snprintf(file, sizeof file, "exercises/%s/%s", number, name_of(original));
    if (!copy)
        *file = 0;
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
        print_text("%s\n", value("ask"));
    }
    print_text("make exercise N=04.1: what is asked. With ANSWER=...: is it right?\n");
}

/* ---- programs ---- */

/* The path of a program, built; with the student's file in place of the stage's, if there is one. */
static const char *built(const char *folder, const char *name, const char *device_words) {
    static char path[4 * PATH];
    snprintf(path, sizeof path, "%s/%s%s/%s", folder, *file ? "exercises/" : "", *file ? number : stage, name);
    show_progress("building ...");
    Command c = command("log=$('%s' --no-print-directory DEVICE=%s %s%s %s%s '%s' 2>&1) || "
                        "{ echo \"$log\" | grep -m 1 -w error || echo \"$log\"; exit 1; }",
                        make, device_words, *file ? "EXERCISE=" : "", *file ? number : "", *file ? "EXERCISE_STAGE=" : "",
                        *file ? stage : "", path);
    end_progress();
    if (c.code)
        say(1, "it does not compile: %.*s", (int)strcspn(c.out, "\n"), c.out);
    return path;
}

/* ---- questions ---- */

/* Hands out the student's copy, if it is not there. What is there is never written over. */
static int make_copy(void) {
    if (!*file || access(file, F_OK) == 0)
        return 0;
    if (command("mkdir -p exercises/%s && cp %s %s", number, original, file).code)
        cannot_run("%s cannot be written", file);
    return 1;
}

/* Where the word ANSWER stands in options, the student's answer belongs: at their end. */
static const char *answer_in(const char *options) {
    const char *place = strstr(options, "ANSWER");
    return place ? place : options + strlen(options);
}

/* What the kernels do: the answers, one a line. The rows of all `trace` and `measure` lines, with a field `run` that counts those
 * lines, are what the `answer` lines are computed from. */
static char *computed(const char *answer) {
    char runs[4096] = ":", script[4096] = "", traced_build[PATH];
    snprintf(traced_build, sizeof traced_build, "cpu TRACE=1 OUT='%s'", trace_out);
    make_copy();
    for (int line = at, run = 0; in_exercise(line); line++) {
        const char *options = lines[line].value;
        int traced = has_key(line, "trace"), fixed = (int)(answer_in(options) - options);
        char *to = script + strlen(script);
        if (has_key(line, "answer"))
            snprintf(to, sizeof script - strlen(script), "print (%s)\n", options);
        if (!traced && !has_key(line, "measure"))
            continue;
        snprintf(to, sizeof script - strlen(script), "if (!count(\"run=%d\")) exit 1\n", ++run); /* it did not run */
        snprintf(runs + strlen(runs), sizeof runs - strlen(runs), "; '%s' %s --json %.*s %s | sed 's/^{/{\"run\": %d, /'",
                 traced ? built(trace_out, stage, traced_build) : built(out, stage, device), traced ? "--trace" : "", fixed,
                 options, options[fixed] ? answer : "", run);
    }
    show_progress("running ...");
    Command c = command("(%s) | awk \"$(cat common/classroom/rows.awk)\"' END { OFMT = \"%%.15g\"\n%s }'", runs, script);
    end_progress();
    if (c.code)
        cannot_run("%s", c.reason);
    return c.out;
}

static int is_number(const char *word, double *x) {
    char *end;
    *x = strtod(word, &end);
    return end > word && (!*end || strcmp(end, "%") == 0) && isfinite(*x);
}

/* Compares the answer with the right one, number by number, or word by word. */
static void check(char *answer) {
    const char *hint = value("hint"), *within = value("within");
    char wrong[1024] = "", *save_given, *save_right;
    if (value("measure") && *answer_in(value("measure"))) { /* what comes out is "right", or why not */
        if (answer[strspn(answer, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,=-")])
            cannot_run("ANSWER=%s: choose options, as the program takes them", answer);
        const char *verdict = strtok_r(computed(answer), "\n", &save_right);
        say(strcmp(verdict, "right") != 0, "%s", verdict);
    }
    char *given = strtok_r(answer, ", \t", &save_given), *right = strtok_r(computed(""), "\n", &save_right);
    for (int i = 1; given && right; i++) {
        double x = 0, y = 0;
        int numbers = is_number(right, &y);
        if (numbers && !is_number(given, &x))
            cannot_run("ANSWER=%s: choose numbers, with commas between", given);
        if (numbers ? fabs(x - y) > (within ? atof(within) : 0) * fabs(y) + 1e-9 : strcmp(given, right) != 0)
            snprintf(wrong + strlen(wrong), sizeof wrong - strlen(wrong), "%snumber %d is not %.100s", *wrong ? ", " : "", i,
                     given);
        given = strtok_r(NULL, ", \t", &save_given), right = strtok_r(NULL, "\n", &save_right);
    }
    if (given || right)
        cannot_run("ANSWER has too %s numbers: %s", given ? "many" : "few", value("ask"));
    if (*wrong)
        say(1, "%s%s%s", wrong, hint ? ". " : "", hint ? hint : "");
    say(0, "right");
}

static void question(char *answer) {
    int is_new = make_copy();
    const char *change = *file ? value("change") + strlen(original) + 2 : NULL; /* after "04_fa2/split_q.cu: " */
    if (!answer) {
        print_text("%s  %s\n", number, value("ask"));
        if (change && is_new)
            print_text("%s is a copy of %s to work on. In it: %s.\n", file, original, change);
        else if (change)
            print_text("Your copy is %s. In it: %s.\n", file, change);
        print_text("Then: make exercise N=%s ANSWER=...\n", number);
        return;
    }
    if (change && !strstr(read_file(file), value("changed")))
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
    if (strstr(file, ".cuh")) /* a header finds its way only into kernels beside it */
        command("cp %s/*.cu exercises/%s/", stage, number);
    print_text("%s  %s is %s with %d lines missing, at line %d: %s.\nWrite them, then: make exercise N=%s\n", number, file,
               original, missing, first, value("ask"), number);
}

/* What the stage's grid finds in the student's file: the first case that fails, and how. */
static void try_file(void) {
    const char *variant = value("variant");
    const char *grid = built(out, "grid", device);
    show_progress("trying shapes and masks ...");
    Command c =
        command("exec timeout 300 '%s' --quick %s %s 2>&1", grid, variant ? "--variant" : "", variant ? variant : "");
    end_progress();
    if (c.code == 0 && !c.signal)
        say(0, "right");
    if (c.code == 124)
        say(1, "it does not come to an end");
    const char *failure = strstr(c.out, " --variant "), *end = failure ? strstr(failure, "out of bounds") : NULL;
    while (failure && failure > c.out && failure[-1] != ' ') /* back to the program's name */
        failure--;
    if (failure && end)
        say(1, "it fails for %.*s)", (int)(end + strlen("out of bounds") - failure), failure);
    char *last = c.out + strlen(c.out) - (*c.out != 0);
    *last = 0; /* the newline */
    last = strrchr(c.out, '\n');
    say(1, "the device stopped it: %s", last ? last + 1 : c.out);
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
    if (argc < 2 + solve) {
        list();
        return 0;
    }
    const char *asked = argv[1 + solve];
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
    if (solve)
        for (char *c = computed(""); *c; c++)
            putchar(*c != '\n' ? *c : c[1] ? ',' : '\n');
    else if (!value("blank"))
        question(argc > 2 ? argv[2] : NULL);
    else if (access(file, F_OK) != 0)
        cut();
    else
        try_file();
    return 0;
}
