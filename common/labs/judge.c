/* judge.c - the judge of the labs: a stage's program like any other, except that its one variant is the student's program.
 *
 *     build/cpu/lab build/cpu/labs/04/run --seqlen 65            the lab is the folder that the program is in
 *
 * What the lab's kernel computes is said in common/labs/04/lab.txt.
 *
 * Options, inputs, the comparison with 00_naive and the fp64 oracle are the harness's. The variant's launch sends the problem and
 * its inputs to the program that is named first, waits for it and takes the outputs back (lab.h). If the program was built with
 * TRACE=1, what the trace counted is printed as JSON rows, before a row with what no kernel can do without: `compulsory`, the bytes
 * of inputs and outputs, and `pairs` of a query and a key that it sees.
 *
 * Exit code: a stage's, or 1 if the student's program did not end well; then it has said why.
 */
#define _POSIX_C_SOURCE 200809L
#include "../device/device.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "../traffic.h"
#include "lab.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern const Variant naive_gradients; /* 05_fa2_backward's; O and LSE come from 00_naive */
extern MaskReader blocks_read;        /* 10_block_sparse's */
extern ScoreReader score_read;        /* 11_score_mod's */

static Stage lab = {.idea = "the kernel that you write"};
static const char *program;

/* A temporary file without a name, which nobody else can open. */
static FILE *open_scratch(void) {
    FILE *file = tmpfile();
    if (!file)
        cannot_run("cannot create a temporary file: set TMPDIR to a folder that you can write to");
    return file;
}

/* Runs the student's program. Unless it ends well the judge ends, too. */
static void run_program(FILE *request, FILE *reply) {
    int status = 0;
    fflush(NULL);
    rewind(request);
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(request), STDIN_FILENO);
        dup2(fileno(reply), STDOUT_FILENO);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        cannot_run("%s cannot be started", program);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        cannot_run("%s: there is no such program; make lab builds it", program);
    if (WIFSIGNALED(status))
        fprintf(stderr, WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL
                            ? "kernel stopped: it used all the processor time or memory that it is allowed\n"
                            : "kernel stopped by signal %d\n", WTERMSIG(status));
    if (status != 0)
        exit(1);
}

static void send(FILE *to, const void *device, size_t bytes) {
    char *host = host_alloc(bytes, 1);
    device_read(host, device, bytes);
    fwrite(host, 1, bytes, to);
    free(host);
}

static int is_untouched(const char *host, size_t bytes) {
    const uint16_t untouched = LAB_UNTOUCHED;
    return memcmp(host, &untouched, 2) == 0 && memcmp(host, host + 2, bytes - 2) == 0;
}

/* Outputs that are missing stay as they are: NaN. */
static void receive(FILE *from, const char *name, void *device, size_t bytes) {
    char *host = host_alloc(bytes, 1);
    if (fread(host, 1, bytes, from) == bytes)
        device_write(device, host, bytes);
    if (is_untouched(host, bytes))
        fprintf(stderr, "nothing was written to %s\n", name);
    free(host);
}

static void print_counts(FILE *reply, const Problem *p, const Tensors *t, const LabTensor *all, int count) {
    char line[4096];
    double bytes = 0;
    int is_traced = 0;
    for (; fgets(line, sizeof line, reply); is_traced = 1)
        fputs(line, stdout);
    for (int i = 0; i < count; i++)
        bytes += (double)all[i].bytes;
    if (is_traced)
        printf("{\"compulsory\": %.0f, \"pairs\": %.0f}\n", bytes, visible_pairs(p, t->key_lengths));
}

static void launch_program(const Problem *p, const Tensors *t, const Buffer *workspace) {
    const Request request = {*p, lab.kind == BACKWARD, t->key_lengths != NULL, t->score.sinks != NULL, t->mask.window, t->score};
    FILE *to = open_scratch(), *from = open_scratch();
    LabTensor all[LAB_MOST_TENSORS];
    Tensors tensors = *t;
    const int count = lab_tensors(p, request.is_backward, all);
    (void)workspace;

    fwrite(&request, sizeof request, 1, to);
    if (t->key_lengths)
        send(to, t->key_lengths, (size_t)p->batch * sizeof *t->key_lengths);
    if (t->score.sinks)
        send(to, t->score.sinks, (size_t)p->heads * sizeof *t->score.sinks);
    for (int i = 0; i < count; i++)
        if (all[i].role != LAB_OUTPUT)
            send(to, *lab_pointer(&tensors, &all[i]), all[i].bytes);
    run_program(to, from);
    rewind(from);
    for (int i = 0; i < count; i++)
        if (all[i].role == LAB_OUTPUT)
            receive(from, all[i].name, *lab_pointer(&tensors, &all[i]), all[i].bytes);
    print_counts(from, p, t, all, count);
    fclose(to), fclose(from);
}

/* ---- what the lab's kernel computes ---- */

/* What common/labs/<lab>/lab.txt says behind a word, or NULL. The judge runs in the repository's folder, as make does. */
static const char *lab_says(const char *word) {
    static char path[256], line[512], value[256];
    snprintf(path, sizeof path, "common/labs/%s/lab.txt", lab.name);
    FILE *file = fopen(path, "r");
    if (!file)
        cannot_run("%s: there is no %s here: run it in the root of the repository, with the program of a lab, like build/cpu/labs/04/run", program, path);
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        char key[32] = "";
        found = sscanf(line, "%31s %255s", key, value) == 2 && strcmp(key, word) == 0;
    }
    fclose(file);
    return found ? value : NULL;
}

/* The lab is the folder that the program is in. */
static const char *lab_of_program(void) {
    char *path = host_alloc(strlen(program) + 1, 1), *end = strrchr(strcpy(path, program), '/');
    if (!end)
        cannot_run("%s: choose the program of a lab, like build/cpu/labs/04/run", program);
    *end = 0;
    char *folder = strrchr(path, '/');
    return folder ? folder + 1 : path;
}

static Dtype lab_dtype(void) {
    const char *name = lab_says("dtype");
    for (int dtype = 0; name && dtype < DTYPE_COUNT; dtype++)
        if (strcmp(name, dtype_name(dtype)) == 0)
            return dtype;
    cannot_run("common/labs/%s/lab.txt: dtype must be fp16, bf16 or fp32", lab.name);
}

static int lab_is_backward(void) {
    const char *kind = lab_says("kind");
    if (!kind || (strcmp(kind, "forward") != 0 && strcmp(kind, "backward") != 0))
        cannot_run("common/labs/%s/lab.txt: kind must be forward or backward", lab.name);
    return strcmp(kind, "backward") == 0;
}

/* The text that is the lab's own: a block mask, or a score mod, which `mask` or `score` in lab.txt gives a default. */
static void read_setting(void) {
    static char text[256];
    const char *mask = lab_says("mask"), *other = mask ? mask : lab_says("score");
    if (!other)
        return;
    lab.default_mask = strcpy(text, other);
    lab.settings[0] = (Setting){.name = "score", .max = TEXT, .help = "softcap:C, alibi, sink; given again, they are combined"};
    lab.read_score = mask ? NULL : score_read;
    if (mask) {
        lab.settings[0] = (Setting){.name = "blocks", .max = TEXT, .help = "window:W, the last W keys of each query"};
        lab.read_mask = blocks_read;
    }
}

/* Fills in the table as a stage's main.c does. All labs take head dim 64. Returns the dtype's name. */
static const char *describe_lab(void) {
    const Problem shape = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 64, .head_dim = 64};
    lab.name = lab_of_program();
    const Dtype dtype = lab_dtype();
    const int is_backward = lab_is_backward();
    lab.kind = is_backward ? BACKWARD : FORWARD;
    lab.defaults[0] = lab.defaults[1] = shape;
    lab.forward = is_backward ? &naive_variant : NULL;
    lab.reference = is_backward ? &naive_gradients : NULL;
    lab.variants[0] = (Variant){.name = "kernel", .idea = program, .launch = launch_program, .dtypes = 1u << dtype,
                                .head_dims = {64}, .unordered = is_backward};
    read_setting();
    return dtype_name(dtype);
}

int main(int argc, char **argv) {
    program_is("lab");
    program = argc > 1 ? argv[1] : "";
    const char *dtype = describe_lab();
    const char **options = host_alloc((size_t)argc + 4, sizeof *options); /* ours first: those that are given come after and win */
    int count = 0;
    options[count++] = argv[0];
    options[count++] = "--dtype", options[count++] = dtype;
    options[count++] = "--iters", options[count++] = "1";
    for (int i = 2; i < argc; i++)
        options[count++] = argv[i];
    return harness_main(&lab, count, (char **)options);
}
