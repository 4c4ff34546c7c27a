/* trial.c - see trial.h. */
#include "trial.h"

#include "../host/errors.h"
#include "command.h"

#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

/* The copy, made again if anything that it was made from has changed since. */
static const char *tree_of(const Trial *t, const char *out) {
    const char *tree = text_of("%s-scratch/%s", out, t->name);
    Command c = command("tree='%s' out='%s' stage='%s' file='%s' by='%s'\n"
                        "[ -e \"$tree/made\" ] && [ ! \"$(find Makefile common/ tests/*.[ch] notes/exercises/*.[ch]* "
                        "$stage/ 00_naive/ $by -newer "
                        "\"$tree/made\" | head -n 1)\" ] && exit\n"
                        "rm -rf \"$tree\" && mkdir -p \"$tree/notes/exercises\" \"$tree/$out/tests\" \"$tree/tests\" &&"
                        " cp -pRH Makefile common [0-9]*_* \"$tree/\" && cp -p tests/*.[ch] \"$tree/tests/\" &&"
                        " cp -p notes/exercises/*.[ch]* \"$tree/notes/exercises/\" && chmod -R u+w \"$tree\" || exit\n"
                        "case $out in\n"
                        "/*) ;;\n" /* the dependencies beside the objects name another folder: all is compiled */
                        "*) cp -pR $out/common $out/00_naive $out/$stage $out/*.a $out/flags-* \"$tree/$out/\" 2>/dev/null\n"
                        "   cp -p $out/tests/grid*.[od] \"$tree/$out/tests/\" 2>/dev/null ;;\n"
                        "esac\n"
                        "if [ $by ]; then cp $by \"$tree/$file\"; fi && touch \"$tree/made\"",
                        tree, out, t->stage, t->file ? t->file : "", t->by ? t->by : "");
    if (c.code)
        cannot_run("%s: no copy of the tree can be made: %s", tree, c.reason);
    return tree;
}

/* What is built has other flags than the file that is new: -O1 compiles in half the time. IS_FLAGS: make shall not mind. */
const char *trial_build(Trial *t, const char *device_words, const char *out, const char *programs) {
    const char *make = getenv("MAKE"), *replaced = t->by ? t->file : "/";
    show_progress("building ...");
    const char *tree = tree_of(t, out);
    out = *out == '/' ? text_of("build/%s", name_of(out)) : out; /* the copy stays inside its folder */
    Command c =
        command("cd '%s' && flags=$(ls '%s'/flags-* 2>/dev/null | head -n 1) targets=\n"
                "for p in %s; do targets=\"$targets %s/$p\"; done\n"
                "log=$('%s' --no-print-directory DEVICE=%s OUT='%s' WARN=-w KERNEL_OPTIMISE=-O1 COMMIT=scratch "
                "${flags:+IS_FLAGS=$flags} $targets 2>&1) || "
                "{ (echo \"$log\" | grep -m 1 -w error || echo \"$log\") | sed 's|^%s|%s|'; exit 1; }",
                tree, out, programs, out, make && *make ? make : "make", device_words, out, replaced, t->by ? t->by : "");
    end_progress();
    t->error = c.code ? c.out : NULL;
    return c.code ? NULL : text_of("%s/%s", tree, out);
}

/* ---- what is wrong ---- */

/* Each problem has one thing that those before it do not have. */
static const struct {
    const char *words, *options;
} problems[] = {
    {"one query and one key", "--seqlen 1 --seqlen-k 1"},
    {"one query and two keys", "--seqlen 1 --seqlen-k 2"},
    {"two queries and two keys", "--seqlen 2"},
    {"one query and 64 keys", "--seqlen 1 --seqlen-k 64"},
    {"one query and 65 keys", "--seqlen 1 --seqlen-k 65"},
    {"one query and 300 keys", "--seqlen 1 --seqlen-k 300"},
    {"16 queries and 64 keys", "--seqlen 16 --seqlen-k 64"},
    {"64 queries and 64 keys", "--seqlen 64"},
    {"128 queries and 128 keys", "--seqlen 128"},
    {"256 queries and 256 keys", "--seqlen 256"},
    {"150 queries and 300 keys", "--seqlen 150 --seqlen-k 300"},
    {"64 queries and 64 keys, causal", "--seqlen 64 --causal"},
    {"100 queries and 150 keys, causal", "--seqlen 100 --seqlen-k 150 --causal"},
    {"two heads", "--seqlen 64 --heads 2"},
    {"four heads that share two of K and V", "--seqlen 64 --heads 4 --kv-heads 2"},
    {"three batch entries, of which the first has no key and the second one", "--seqlen 64 --batch 3 --lengths 0,1,64"},
    {"large scores: the scale is 1, not 1/8", "--seqlen 64 --scale 1"},
    {"head dim 128", "--seqlen 100 --head-dim 128"},
};

/* What stands on a program's stderr, without "# " and the variant's name; of forward's two outputs also which one is right. */
static const char *complaint(const char *text) {
    const char *said = "";
    int o = 0, lse = 0;
    for (const char *line = text, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        line += strncmp(line, "# ", 2) == 0 ? 2 : 0;
        size_t word = strcspn(line, " \n");
        line += word > 1 && line[word] == ' ' && line[word - 1] == ':' && line[word - 2] != ')' ? word + 1 : 0;
        o |= strncmp(line, "O[", 2) == 0, lse |= strncmp(line, "LSE[", 4) == 0;
        said = text_of("%s    %.*s\n", said, (int)(end - line), line);
    }
    return o == lse ? said : text_of("%s    %s is right.\n", said, o ? "LSE" : "O");
}

static Failure try_problems(const char *program, const char *variant) {
    Failure f = {.seen_by = "the stage's program"};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const char *line = text_of("%s%s%s --batch 1 --heads 1 --head-dim 64 --iters 1 %s", program,
                                   variant ? " --variant " : "", variant ? variant : "", problems[i].options);
        show_progress("%s ...", problems[i].words);
        Command c = command("timeout 120 %s --json 2>&1 >/dev/null", line);
        end_progress();
        if (c.code == 2 && strncmp(c.out, "kernel ", 7) != 0) /* not a problem for this stage */
            continue;
        if (c.code || c.signal) {
            f.problem = problems[i].words, f.command = line;
            f.said = c.code == 124 ? "    It does not come to an end.\n" : complaint(c.out);
            return f;
        }
        f.right = problems[i].words;
    }
    return (Failure){0};
}

/* The first case that is wrong: its command, up to the next case's. */
static Failure try_grid(const char *grid, const char *program, const char *variant, const char *order, int whole) {
    show_progress("trying shapes and masks ...");
    Command c =
        command("export CPU_DEVICE_ORDER=%s; exec timeout %d '%s' %s %s %s 2>&1 >/dev/null", order, whole ? 1200 : 300, grid,
                whole ? "" : "--quick", variant ? "--variant" : "", variant ? variant : "");
    end_progress();
    if (c.code == 0 && !c.signal)
        return (Failure){0};
    Failure f = {.seen_by =
                     text_of("the grid%s", strcmp(order, "forward") == 0 ? "" : ", with the threads in another order"),
                 .problem = "",
                 .said = c.code == 124 ? "    It does not come to an end.\n" : complaint(c.out)};
    char *text = text_of("%s", c.out), *case_line = strstr(text, " --variant ");
    if (c.code == 124 || !case_line)
        return f;
    char *said = case_line + strcspn(case_line, "\n"), *next = strstr(said, " --variant ");
    while (next && *next != '\n')
        *next-- = 0;
    *said++ = 0;
    f.command = text_of("%s%s", program, case_line);
    f.said = complaint(said);
    return f;
}

Failure trial_failure(Trial *t, const char *device, const char *out, int whole) {
    const char *folder = trial_build(t, device, out, text_of("%s/%s tests/grid_%s", t->stage, t->stage, t->stage));
    if (!folder)
        return (Failure){0};
    const char *program = text_of("%s/%s/%s", folder, t->stage, t->stage);
    Failure f = try_problems(program, t->variant);
    for (int turn = 0; !f.seen_by && turn < 2 + !!whole; turn++)
        f = try_grid(text_of("%s/tests/grid_%s", folder, t->stage), program, t->variant, turn == 1 ? "shuffle" : "forward",
                     turn == 2);
    return f;
}
