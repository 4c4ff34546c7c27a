/* bug.c - plants a mistake in a copy of a stage, and shows what one sees of it.                            (make bug N=04.12)
 *
 *     bug             lists the mistakes; bug 04: those of 04_fa2
 *     bug 04.12       shows the lines as they are and as they will be, asks, runs the stage, and says which check saw it
 *
 * Exit code: 0, 1 if no check saw it, 2 if there is no such mistake. The mistakes are those that `make mutations` plants:
 * tests/mutations_kernels.txt. Everything runs on the CPU device, as it does there. The tree itself is never changed. MAKE and OUT
 * are make's. */
#define _POSIX_C_SOURCE 200809L
#include "../host/errors.h"
#include "command.h"
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *number, *stage, *variant, *file, *mistake;
    const char *from, *to; /* text; everywhere in the file */
} Bug;

/* Reads the next of the list and returns the place behind it, or NULL at the end. Fields as in the list's head. */
static const char *next_bug(const char *text, Bug *bug) {
    static char stage[64], variant[64], file[64], last[64];
    static int count;
    while (*text == '#' || *text == '\n')
        text += *text == '#' ? strcspn(text, "\n") : 1;
    int read = 0;
    if (!*text)
        return NULL;
    if (sscanf(text, "%63s %63s %63[^:]: %n", stage, variant, file, &read) != 3)
        cannot_run("tests/mutations_kernels.txt: not a mutation: %.40s", text);
    count = strcmp(stage, last) == 0 ? count + 1 : 1;
    strcpy(last, stage);
    text += read;
    *bug = (Bug){text_of("%.2s.%d", stage, count), stage, strcmp(variant, "-") ? variant : NULL, file, NULL, NULL, ""};
    bug->mistake = text_of("%.*s", (int)strcspn(text, "\n"), text);
    text += strcspn(text, "\n") + 1;
    for (; *text == '-' || *text == '+'; text += strcspn(text, "\n") + 1) {
        const char **part = *text == '-' ? &bug->from : &bug->to;
        int first = *text == '-' ? !bug->from : !*bug->to, empty = text[1] == '\n';
        *part = text_of("%s%s%.*s", first ? "" : *part, first ? "" : "\n", (int)strcspn(text + 2 - empty, "\n"),
                        text + 2 - empty);
    }
    return text;
}

/* Prints the lines of the text from `begin` to `end`, whole, with their number and a sign. */
static void show(const char *text, size_t begin, size_t end, char sign) {
    int number = 1;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1, number++) {
        size_t length = strcspn(line, "\n"), place = (size_t)(line - text);
        if (place + length >= begin && place <= end)
            printf("%5d %c %.*s\n", number, sign, (int)length, line);
        if (!line[length])
            break;
    }
}

/* Shows what changes, and returns the file as it will be. */
static const char *planted(const Bug *bug) {
    const char *text = read_file(bug->file), *rest = text, *found, *mutated = "";
    for (; (found = strstr(rest, bug->from)); rest = found + strlen(bug->from)) {
        mutated = text_of("%s%.*s", mutated, (int)(found - rest), rest);
        size_t place = strlen(mutated), before = (size_t)(found - text);
        const char *whole = text_of("%s%s%s", mutated, bug->to, found + strlen(bug->from));
        show(text, before, before + strlen(bug->from), '-');
        show(whole, place, place + strlen(bug->to), '+');
        mutated = text_of("%s%s", mutated, bug->to);
    }
    if (rest == text)
        cannot_run("%s: the line is no longer in %s", bug->number, bug->file);
    return text_of("%s%s", mutated, rest);
}

static int run(const Bug *bug) {
    const char *make_out = getenv("OUT"), *out = make_out && *make_out ? make_out : "build/cpu";
    const char *by = text_of("%s-scratch/planted", out), *variant = bug->variant ? bug->variant : "";
    Trial t = {.name = "bug", .stage = bug->stage, .variant = bug->variant, .file = bug->file, .by = by};
    printf("%s  %s: %s\n", bug->number, bug->file, bug->mistake);
    const char *text = planted(bug);
    FILE *to = command("mkdir -p '%s-scratch'", out).code ? NULL : fopen(by, "wb");
    if (!to || fputs(text, to) < 0 || fclose(to))
        cannot_run("%s cannot be written", by);
    printf("What will one see? NaN, some wrong rows, nothing at all? With which shapes? What will see it?\n");
    if (isatty(STDIN_FILENO)) {
        printf("(Enter runs it.)");
        fflush(stdout);
        while (getchar() != '\n' && !feof(stdin))
            ;
    }
    const char *folder = trial_build(&t, "cpu", out, text_of("%s/%s tests/grid_%s", bug->stage, bug->stage, bug->stage));
    if (!folder)
        cannot_run("%s does not compile: %s", bug->number, t.error);
    show_progress("running ...");
    Command c =
        command("timeout 120 %s/%s/%s %s %s 2>&1", folder, bug->stage, bug->stage, *variant ? "--variant" : "", variant);
    end_progress();
    printf("\n%s/%s %s %s\n%s\n", bug->stage, bug->stage, *variant ? "--variant" : "", variant, c.out);
    Failure f = trial_failure(&t, "cpu", out, 1);
    if (!f.seen_by) {
        printf("No check sees it.\n");
        return 1;
    }
    printf("Seen by %s%s", f.seen_by, c.code || !*f.problem ? "" : ", though not with its usual options");
    printf("%s%s%s%s.\n%s", f.right ? ": right for " : "", f.right ? f.right : "",
           !*f.problem ? ""
           : f.right   ? ", wrong for "
                       : ": wrong for ",
           f.problem, f.said);
    printf("  See it again: %s\n", f.command ? f.command : text_of("the copy is %s-scratch/bug", out));
    return 0;
}

static int list_or_run(const char *asked) {
    const char *text = read_file("tests/mutations_kernels.txt");
    int listed = 0;
    for (Bug bug; (text = next_bug(text, &bug));) {
        const char *number = bug.number;
        if (strncmp(bug.stage, "tests/", 6) == 0) /* not in a kernel */
            continue;
        if (strcmp(number, asked) == 0 || (*number == '0' && strcmp(number + 1, asked) == 0))
            return run(&bug);
        if (*asked && (strlen(asked) != 2 || strncmp(number, asked, 2) != 0))
            continue;
        printf("%-6s %-32s %s\n", number, bug.file, bug.mistake);
        listed++;
    }
    if (!listed)
        cannot_run("N=%s: there is no such bug, make bug lists them", asked);
    printf("make bug N=04.12 plants one in a copy, and shows what sees it.\n");
    return 0;
}

int main(int argc, char **argv) {
    program_is("bug");
    int code = list_or_run(argc > 1 ? argv[1] : "");
    flush_output();
    return code;
}
