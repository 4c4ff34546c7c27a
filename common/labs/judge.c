/* judge.c - the judge of the labs: a stage's program like any other, except that its one variant is the student's program.
 *
 *     build/cpu/lab build/cpu/labs/04/run --seqlen 65            the lab is the folder that the program is in
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

/* What the labs' kernels compute. All take head dim 64. */
static const struct {
    const char *name;
    Kind kind;
    unsigned dtypes;
} LABS[] = {
    {"00", FORWARD, FP32}, {"01", FORWARD, FP32},  {"02", FORWARD, FP32}, {"04", FORWARD, FP32},
    {"05", BACKWARD, FP32}, {"07", FORWARD, FP32}, {"08", FORWARD, FP16}, {"fragments", FORWARD, FP16},
    {"window", FORWARD, FP32},
};

extern const Variant naive_gradients; /* 05_fa2_backward's; O and LSE come from 00_naive */
extern MaskReader blocks_read;        /* 10_block_sparse's */

static Stage lab = {.idea = "the kernel that you write"};
static const char *program;

/* A temporary file without a name, which nobody else can open. */
static FILE *open_scratch(void) {
    FILE *file = tmpfile();
    if (!file)
        cannot_run("no temporary file can be made: set TMPDIR to a folder that can be written");
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
        cannot_run("%s: there is no such program, make lab builds it", program);
    if (WIFSIGNALED(status))
        fprintf(stderr, WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL
                            ? "kernel stopped: it used all the processor time or memory that it may have\n"
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

/* Fresh memory is 0xff in every byte, a NaN that no arithmetic produces. */
static int is_untouched(const char *host, size_t bytes) { return (unsigned char)host[0] == 0xff && memcmp(host, host + 1, bytes - 1) == 0; }

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
    const Request request = {*p, lab.kind == BACKWARD, t->key_lengths != NULL, t->mask.window};
    FILE *to = open_scratch(), *from = open_scratch();
    LabTensor all[LAB_MOST_TENSORS];
    Tensors tensors = *t;
    const int count = lab_tensors(p, request.is_backward, all);
    (void)workspace;

    fwrite(&request, sizeof request, 1, to);
    if (t->key_lengths)
        send(to, t->key_lengths, (size_t)p->batch * sizeof *t->key_lengths);
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

/* The table of the lab that the program belongs to. Ends the judge if there is none. */
static const char *choose_lab(void) {
    char *end = strrchr(program, '/'), *folder = end;
    while (folder && folder > program && folder[-1] != '/')
        folder--;
    for (size_t i = 0; folder && i < sizeof LABS / sizeof *LABS; i++) {
        const char *name = LABS[i].name;
        if ((size_t)(end - folder) != strlen(name) || memcmp(folder, name, strlen(name)) != 0)
            continue;
        const int is_backward = LABS[i].kind == BACKWARD;
        const Problem shape = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 64, .head_dim = 64};
        lab.name = name;
        lab.kind = LABS[i].kind;
        lab.defaults[0] = lab.defaults[1] = shape;
        lab.forward = is_backward ? &naive_variant : NULL;
        lab.reference = is_backward ? &naive_gradients : NULL;
        lab.variants[0] = (Variant){.name = "kernel", .idea = program, .launch = launch_program, .dtypes = LABS[i].dtypes,
                                    .head_dims = {64}, .unordered = is_backward};
        if (strcmp(name, "window") == 0) {
            lab.settings[0] = (Setting){.name = "blocks", .max = TEXT, .help = "window:W, the last W keys of each query"};
            lab.read_mask = blocks_read;
            lab.default_mask = "window:40";
        }
        return LABS[i].dtypes == FP32 ? "fp32" : "fp16";
    }
    cannot_run("%s: choose the program of a lab, like build/cpu/labs/04/run", program);
}

int main(int argc, char **argv) {
    program_is("lab");
    program = argc > 1 ? argv[1] : "";
    const char *dtype = choose_lab();
    const char **options = host_alloc((size_t)argc + 4, sizeof *options); /* ours first: those that are given come after and win */
    int count = 0;
    options[count++] = argv[0];
    options[count++] = "--dtype", options[count++] = dtype;
    options[count++] = "--iters", options[count++] = "1";
    for (int i = 2; i < argc; i++)
        options[count++] = argv[i];
    return harness_main(&lab, count, (char **)options);
}
