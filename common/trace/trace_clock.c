/* trace_clock.c - the steps of a block, and the model's clock (notes/trace.md). trace_watch.c adds what happened in each step, if somebody
 * watches.
 *
 * Time. On the CPU device threads run one after another, so their order says nothing. What a kernel does say is what comes
 * after what, and that is all a *step* is: each warp counts its steps, and goes on to the next one at __syncthreads, where
 * all warps go on with the highest count, at __syncwarp, and where it acquires a barrier, with one more than the highest
 * count of those who arrived there (Lamport's logical clock). What a block's warps do in their step t is step t of the block.
 *
 * Clock. A step takes as many cycles as its busiest unit needs at its peak rate, and those for which the block waited for
 * others. The steps of a block follow each other; a block begins when its multiprocessor is free, and a launch when the one
 * before is over.
 */
#include "trace_internal.h"

#include "../host/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where a thread looked last for what another block does; how much had been changed by then. */
typedef struct {
    const void *address;
    uint32_t time;
    uint64_t changes;
} Look;

/* Of a block that is at work. */
struct Clock {
    double clock; /* when the first step began that is not closed */
    Step *steps;
    int step_count, closed;
    uint32_t times[MAX_WARPS]; /* the step that each warp is at */
    Look looks[SIMT_MAX_BLOCK];
};

static Launch launch; /* the one at hand */

static int this_warp(void) { return simt_self->current->number / SIMT_WARP; }

static Step *step_at(Clock *c, uint32_t time) {
    while ((uint32_t)c->step_count <= time) {
        uint32_t next = (uint32_t)c->step_count;
        Step *step = APPEND(c->steps, c->step_count);
        step->block = simt_self->recorder->block, step->multiprocessor = simt_self->multiprocessor, step->time = next;
    }
    return &c->steps[time];
}

/* Where the current thread's warp is. */
static Step *step_of(Recorder *r) { return step_at(r->clock, clock_step(r)); }

/* ---- the clock ---- */

/* What the busiest unit of a multiprocessor needs, in whole cycles, and which that is. */
static double cycles_of(const Step *s, int *busiest) {
    const double needs[] = {s->bytes / launch.bytes_per_clock, s->wavefronts, s->tensor_cycles, s->exponentials / 16.0,
                            (double)s->core_flops / trace_chip->fp32};
    *busiest = 0;
    for (int unit = 1; unit < (int)(sizeof needs / sizeof *needs); unit++)
        *busiest = needs[unit] > needs[*busiest] ? unit : *busiest;
    return needs[*busiest] < 1 ? 1 : ceil(needs[*busiest]);
}

static int is_empty(const Step *s) {
    return !(s->bytes || s->product_count || s->flops || s->wavefronts || s->exponentials || s->barriers || s->core_flops || s->waited);
}

uint32_t clock_step(Recorder *r) { return r->clock->times[this_warp()]; }

/* As far as is known now: other warps may still be in earlier steps, and have more to do there. */
double clock_now(Recorder *r) {
    const Clock *c = r->clock;
    double clock = c->clock;
    int busiest;
    for (const Step *s = c->steps + c->closed, *end = c->steps + c->step_count; s < end && s->time <= clock_step(r); s++)
        clock += s->waited + (is_empty(s) || s->time == clock_step(r) ? 0 : cycles_of(s, &busiest));
    return clock;
}

/* How often anything was changed that a block may wait for. Who looks again at what it looked at since, in the same step, waits. */
static uint64_t changes;

void clock_look(Recorder *r, const void *address) {
    Look *look = &r->clock->looks[simt_self->current->number];
    uint32_t time = clock_step(r);
    if (look->address == address && look->time == time && look->changes == changes) {
        double clock = clock_now(r);
        simt_yield(clock, 1);
        step_at(r->clock, time)->waited += simt_self->clock - clock;
    }
    *look = (Look){address, time, changes};
}

void clock_changed(void) {
    changes++;
    simt_changed();
}

/* ---- steps ---- */

static void go_on(Recorder *r, int warp, uint32_t time) {
    if (page_problem)
        watch_warp_ends_step(r, warp, step_at(r->clock, r->clock->times[warp]));
    r->clock->times[warp] = time;
}

/* No warp will come back to the steps before `end`. */
static void close_steps(Recorder *r, uint32_t end) {
    Clock *c = r->clock;
    for (; (uint32_t)c->closed < end && c->closed < c->step_count; c->closed++) {
        Step *step = &c->steps[c->closed];
        if (page_problem)
            watch_step_closes(r, step);
        step->start = c->clock;
        if (!is_empty(step))
            c->clock += step->cycles = cycles_of(step, &step->busiest) + step->waited;
    }
}

void clock_block_begins(Recorder *r) {
    Clock *c = r->clock = r->clock ? r->clock : host_alloc(1, sizeof *c);
    memset(c, 0, sizeof *c);
    c->clock = simt_self->clock;
    step_at(c, 0);
    if (page_problem)
        watch_block_begins(r);
}

void clock_block_ends(Recorder *r) {
    Clock *c = r->clock;
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        go_on(r, warp, c->times[warp]);
    close_steps(r, UINT32_MAX);
    simt_self->clock = c->clock;
    for (int i = 0; page_problem && i < c->step_count; i++)
        if (!is_empty(&c->steps[i]))
            *APPEND(launch.steps, launch.count) = c->steps[i];
    free(c->steps);
    if (page_problem)
        watch_block_ends(r);
}

/* ---- what trace.c and trace_warp.c tell ---- */

void clock_access(Recorder *r, int tensor, SiteKind kind, size_t offset, size_t bytes) {
    Step *step = step_of(r);
    if (tensor != SHARED_TENSOR)
        step->bytes += (1 + (kind == SITE_ATOMIC)) * bytes;
    if (page_problem)
        watch_access(r, step, tensor, kind, offset, bytes);
}

void clock_wavefronts(Recorder *r, int warp, uint64_t count) { step_at(r->clock, r->clock->times[warp])->wavefronts += count; }

void clock_async(Recorder *r, const void *place) {
    if (page_problem)
        watch_async(r, this_warp(), place);
}

void clock_work(Recorder *r, int warp, const char *what, const void *place, unsigned flops) {
    Step *step = step_at(r->clock, r->clock->times[warp]);
    step->exponentials += strcmp(what, CLOCK_EXPONENTIAL) == 0;
    step->flops += flops;
    if (flops) /* 8-bit ones take 32 elements of k */
        step->tensor_cycles += flops * trace_chip->ghz * trace_chip->multiprocessors / 1000 / trace_chip->tflops[strstr(what, "k32") != NULL];
    if (page_problem)
        watch_work(r, warp, launch.kernel, what, place, flops);
}

void clock_flops(Recorder *r, unsigned flops) { step_of(r)->core_flops += flops; }

void clock_barrier(Recorder *r, const char *what, const void *place) {
    Clock *c = r->clock;
    uint32_t latest = 0;
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        latest = c->times[warp] > latest ? c->times[warp] : latest;
    clock_work(r, 0, what, place, 0);
    step_at(c, latest)->barriers++;
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        go_on(r, warp, latest + 1);
    close_steps(r, latest + 1);
}

void clock_warp(Recorder *r, int warp) { go_on(r, warp, r->clock->times[warp] + 1); }

void clock_acquire(Recorder *r, uint32_t step) {
    if (step > clock_step(r))
        go_on(r, this_warp(), step);
}

/* ---- a launch ---- */

void clock_launch_begins(void) {
    const double blocks = (double)simt_job->grid.x * simt_job->grid.y * simt_job->grid.z, most = trace_chip->multiprocessors;
    launch = (Launch){.kernel = result_kernel(), .blocks = (uint64_t)blocks};
    /* Blocks that are at work share device memory; but a multiprocessor's way to L2 takes 64 bytes per clock. */
    launch.bytes_per_clock = fmin(64, trace_chip->gbps / trace_chip->ghz / fmin(blocks, most));
    if (page_problem)
        watch_launch_begins();
}

void clock_launch_ends(void) {
    if (page_problem)
        watch_launch_ends(&launch);
}
