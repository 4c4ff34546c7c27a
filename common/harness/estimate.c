/* estimate.c - how long the CPU device will take, said before it begins: it simulates every thread, and a GPU's problem may take
 * hours. Each variant runs a small problem, and its time grows with the pairs of queries and keys. See run.h.
 */
#include "../host/allocation.h"
#include "../judge/prepared.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    TILE = 128,             /* queries and keys of the small problem's heads, one for each core */
    WORTH_SAYING = 10,      /* seconds */
    SMALL_FLOPS = 200000000 /* a launch of no more takes no such time */
};

/* What time grows with: FLOPs, but a query takes a tile of keys even if it has fewer. */
static double work_of(const Problem *p, const int *key_lengths, Direction direction) {
    Problem whole = *p;
    double flops = 0;
    whole.batch = 1;
    for (int b = 0; b < p->batch; b++) {
        int keys = key_length(p, key_lengths, b);
        whole.seqlen_k = keys > TILE ? keys : TILE;
        flops += counted_flops(&whole, NULL, direction);
    }
    return flops;
}

/* How often a variant's kernels are launched: once to be judged, then timed, alone and as a part; gradients of several launches are
 * compared. */
static double launches_of(const Run *run, const Variant *v) {
    int iters = run->options.iters ? run->options.iters : 1, is_variant = v != run->reference && v != run->stage->forward;
    int is_backward = run->task->direction == BACKWARD;
    int parts = is_variant && (is_backward || variant_prepares(v, run->p));
    return 1 + iters * (1 + parts) + (is_variant && is_backward && run->options.validate ? 9 : 0);
}

/* Seconds of one launch of the small problem. 0: the variant does not run. */
static double time_small(const Run *small, const Variant *v, const Tensors *t, Direction direction) {
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    int fits = 1, count = v->plan ? v->plan(small->p, workspace) : 0;
    double ms = 0;
    for (int i = 0; i < count; i++) {
        workspace[i].pointer = NULL;
        fits = fits && alloc_buffer(&workspace[i]);
    }
    Launch launch = {small, v, t, workspace, variant_prepares(v, small->p) ? WITH_PREPARE : direction};
    for (int i = 0; fits && i < 2; i++) /* the first one starts threads */
        ms = device_time_ms(launch_once, &launch, 1);
    for (int i = 0; i < count; i++)
        device_free(workspace[i].pointer);
    return ms / 1000;
}

/* Whether the variant runs, and has the memory that it needs. */
static int will_run(const Run *run, const Variant *v) {
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    double bytes = 0;
    for (int i = v->plan ? v->plan(run->p, workspace) : 0; i-- > 0;)
        bytes += (double)workspace[i].bytes;
    return !variant_refuses(v, run->p) && bytes < (double)run->report.device->memory_bytes;
}

static double estimated_seconds(const Run *run, const Problem *p) {
    Run small = *run;
    small.p = p;
    size_t element = dtype_bytes(p->dtype), q = query_elements(p) * element, k = key_elements(p) * element;
    HostTensors in = tensors_random(p, 0, 0, 1);
    Tensors t = {.q = upload(in.q, q, "Q"), .k = upload(in.k, k, "K"), .v = upload(in.v, k, "V")};
    t.d_o = upload(in.d_o, q, "dO");
    t.o = device_alloc(q, "O"), t.lse = device_alloc(row_count(p) * sizeof(float), "LSE");
    t.dq = device_alloc(q, "dQ"), t.dk = device_alloc(k, "dK"), t.dv = device_alloc(k, "dV");

    const Variant *all[MAX_VARIANTS + 2] = {run->stage->forward};
    int count = run->stage->forward != NULL;
    if (run->only == run->reference || run->options.validate)
        all[count++] = run->reference;
    for (int i = 0; i < MAX_VARIANTS && run->stage->variants[i].name; i++)
        if (!run->only || run->only == &run->stage->variants[i])
            all[count++] = &run->stage->variants[i];
    double seconds = 0;
    for (int i = 0; i < count && t.o && t.lse && t.dq && t.dk && t.dv; i++) {
        Direction direction = all[i] == run->stage->forward ? FORWARD : run->task->direction;
        if (will_run(run, all[i]) && !variant_refuses(all[i], p))
            seconds += time_small(&small, all[i], &t, direction) * launches_of(run, all[i]) *
                       work_of(run->p, run->options.key_lengths, direction) / work_of(p, NULL, direction);
    }

    const void *on_device[] = {t.q, t.k, t.v, t.d_o, t.o, t.lse, t.dq, t.dk, t.dv};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        device_free((void *)on_device[i]);
    free(in.q), free(in.k), free(in.v), free(in.d_o);
    return seconds;
}

void say_how_long(const Run *run) {
    if (!run->report.device->is_cpu || work_of(run->p, run->options.key_lengths, run->task->direction) < SMALL_FLOPS)
        return;
    Problem small = *run->p;
    int keys = TILE * TILE / (small.seqlen_q < TILE ? small.seqlen_q : TILE);
    small.batch = 1;
    small.heads = small.kv_heads = run->report.device->sm_count;
    small.seqlen_q = small.seqlen_q < TILE ? small.seqlen_q : TILE;
    small.seqlen_k = small.seqlen_k < keys ? small.seqlen_k : keys;
    double seconds = estimated_seconds(run, &small);
    if (seconds < WORTH_SAYING)
        return;
    fprintf(stderr, "%s: this will take about %.0f %s: the CPU device simulates every thread of a GPU\n", run->stage->name,
            seconds < 120    ? seconds
            : seconds < 7200 ? seconds / 60
                             : seconds / 3600,
            seconds < 120    ? "seconds"
            : seconds < 7200 ? "minutes"
                             : "hours");
}
