/* decoding.c - a decoding stage: its kernels take microseconds and read K and V once, so they are timed in another way.
 *
 * Launched one by one by the host they would wait for the host, and a flushed L2 is not what they meet in a model, where every
 * layer has keys of its own. So K and V are there many times over, more bytes than L2 holds; one launch for each copy is
 * recorded as a CUDA graph, and the graph is replayed. --warm: always the same copy.
 */
#include "../host/memory.h"
#include "prepare.h"
#include "run.h"

#include <stdlib.h>

enum {
    MAX_COPIES = 256, /* tiny problems stay in L2 all the same */
    WARM_LAUNCHES = 20,
};

/* What all copies together move, at least: four times L2. For the 60 MiB of an H200 256 MB are that and 1.7 % more;
 * smaller chips get as much, so that figures compare. */
static double rotating_bytes(size_t l2_bytes) { return 4.0 * l2_bytes > 256e6 ? 4.0 * l2_bytes : 256e6; }

/* A copy of the inputs that move, and the launch on it. */
typedef struct {
    Tensors tensors;
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    Launch launch;
} Copy;

typedef struct {
    void **contexts;
    int count;
} Replay;

static double time_all(void *context) {
    const Replay *r = context;
    return device_time_replay_ms(launch_once, r->contexts, r->count);
}

/* A Copy of its own for K, V and the workspace. Returns 0 if it does not fit; free_copy frees what did. */
static int make_copy(const Run *run, const Launch *launch, int buffers, Copy *copy) {
    size_t bytes = key_elements(run->p) * dtype_bytes(run->p->dtype);
    void *k = device_alloc(bytes, "K"), *v = device_alloc(bytes, "V");
    int fits = k && v;
    copy->tensors = *launch->tensors;
    copy->tensors.k = k;
    copy->tensors.v = v;
    for (int i = 0; i < buffers; i++) {
        copy->workspace[i] = launch->workspace[i];
        copy->workspace[i].pointer = NULL;
        fits = fits && alloc_buffer(&copy->workspace[i]);
    }
    if (!fits)
        return 0;
    device_write(k, run->inputs.k, bytes);
    device_write(v, run->inputs.v, bytes);
    copy->launch = *launch;
    copy->launch.tensors = &copy->tensors;
    copy->launch.workspace = copy->workspace;
    if (variant_prepares(launch->variant, run->p))
        launch->variant->preparation->launch(run->p, &copy->tensors, copy->workspace);
    return 1;
}

static void free_copy(Copy *copy, int buffers) {
    device_free((void *)copy->tensors.k);
    device_free((void *)copy->tensors.v);
    for (int i = 0; i < buffers; i++)
        device_free(copy->workspace[i].pointer);
}

static void time_replay(Launch *launch, Row *row) {
    const Run *run = launch->run;
    double moved = run->stage->bytes(run->p, run->options.key_lengths);
    int is_cpu = run->report.device->is_cpu, cold = !run->options.warm && !is_cpu;
    double wanted = cold ? rotating_bytes(run->report.device->l2_bytes) / (moved > 1 ? moved : 1) + 1 : 1;
    int count = wanted < MAX_COPIES ? (int)wanted : MAX_COPIES, made = 0;
    Copy *copies = host_alloc((size_t)count, sizeof *copies);
    void **contexts = host_alloc(WARM_LAUNCHES + (size_t)count, sizeof *contexts);
    for (; cold && made < count; made++) {
        if (!make_copy(run, launch, row->workspace_count, &copies[made])) {
            free_copy(&copies[made], row->workspace_count); /* fewer will have to do */
            break;
        }
        contexts[made] = &copies[made].launch;
    }
    Replay replay = {contexts, made};
    if (made == 0) { /* warm, or no memory for a copy: the inputs themselves, over and over */
        replay.count = is_cpu ? 1 : WARM_LAUNCHES;
        for (int i = 0; i < replay.count; i++)
            contexts[i] = launch;
    }
    take_median(run, time_all, &replay, row);
    device_replay_end();
    for (int i = 0; i < made; i++)
        free_copy(&copies[i], row->workspace_count);
    free(copies);
    free(contexts);
}

const Task decoding_task = {
    .title = "forward",
    .direction = FORWARD_PASS,
    .columns = SHOW_GBPS,
    .outputs = {FORWARD_OUTPUTS},
    .output_count = 2,
    .judge = judge_outputs,
    .time = time_replay,
    .parts = run_preparation,
};
