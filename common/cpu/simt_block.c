/* simt_block.c - how a worker of the machine of simt.h runs a block. */
#include "simt_internal.h"

#include "../host/errors.h"
#include "../host/memory.h"
#include "trace_hooks.h"

#include <sched.h>
#include <string.h>

Worker *simt_make_worker(int number) {
    Worker *w = host_alloc(1, sizeof *w);
    w->shared_pages = simt_map(SHARED_PAGES, SHARED_PAGES);
    if (!w->shared_pages)
        cannot_run("CPU device: out of memory");
    w->number = number;
    w->current = &w->scheduler;
    return w;
}

void simt_begin_block(Worker *w, size_t block) {
    const SimtIndex *grid = &simt_job->grid;
    blockIdx = w->block = (SimtIndex){block % grid->x, block / grid->x % grid->y, block / grid->x / grid->y};
    memset(w->shared, 0xff, simt_job->shared_bytes);
    w->returned = w->gone = 0;
    w->when_stuck = NULL;
    w->looking = 0;
    w->barrier_arrived = w->barrier_predicates = 0;
    w->random = (uint32_t)block * 2654435761u | 1; /* its own order for every block, the same in every run */

    for (int i = 0; i < w->threads; i++) {
        Fiber *fiber = &w->fibers[i];
        fiber->returned = fiber->copy_count = fiber->group = 0;
        fiber->sleeps_on = NULL;
    }
    for (int i = 0; i < MAX_WARPS / 4; i++)
        w->warpgroups[i].arrived = 0;
    w->block_count++;
    for (int warp = 0; warp * SIMT_WARP < w->threads; warp++) {
        int lanes = w->threads - warp * SIMT_WARP;
        w->warps[warp].exists = lanes < SIMT_WARP ? (1u << lanes) - 1 : SIMT_FULL_WARP;
        w->warps[warp].arrived = w->warps[warp].returned = 0;
        simt_set_ready(w, warp, w->warps[warp].exists);
    }
    TELL_TRACE(block_begins, block);
}

/* Nobody of the block can run: those look again that look at memory. 0: there are none. */
static int look_again(Worker *w) {
    if (!w->looking)
        return 0;
    w->looking = 0;
    simt_wake(&w->looking);
    sched_yield(); /* what they wait for may be a block on another core */
    return 1;
}

int simt_run_block(Worker *w) {
    do {
        simt_run_ready(w);
        if (w->warps_ready)
            return 0;
    } while (w->returned < w->threads && ((w->when_stuck && w->when_stuck()) || look_again(w)));
    if (w->returned < w->threads)
        simt_report_stuck(w);
    return 1;
}

void simt_prepare(Worker *w) {
    gridDim = simt_job->grid;
    blockDim = simt_job->block;
    w->threads = simt_job->block.x * simt_job->block.y * simt_job->block.z;
    while (w->fiber_count < w->threads)
        if (!simt_make_fiber(w))
            cannot_run("CPU device: no memory for %d threads' stacks on %d cores; set CPU_DEVICE_THREADS lower",
                       w->fiber_count + 1, simt_worker_count);
    for (int i = 0; i < w->threads; i++)
        w->fibers[i].index = (SimtIndex){i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    w->shared = w->shared_pages + SHARED_PAGES - (simt_job->shared_bytes + 1023) / 1024 * 1024;
    simt_allow_only(w->shared, simt_job->shared_bytes, w->shared_pages, SHARED_PAGES);
}
