/* trace_order.h - what is ordered before what, in the block that a worker runs: vector clocks.
 *
 * The block has one clock. It ticks at barriers, releases, phases, commits and fences, so that "what agent A did before time t" is a well
 * defined set. An *agent* is whoever touches memory on its own account:
 *
 *     0 .. threads - 1                  a thread
 *     threads + w                       the wgmmas of warp w: they read, from their issue to the warp's wgmma_wait
 *     threads + warps + i               the TMA copies that barrier number i counts: they write, from their issue to the end
 *                                       of the barrier's phase
 *     threads + warps + MAX_BARRIERS + w  the bulk additions of a thread of warp w: they read, from their issue to the thread's
 *                                       bulk_wait_read
 *
 * Each thread has a row of times, one an agent: what that agent did before this time is ordered before what the thread does
 * now. An arrival at an mbarrier or a named barrier *releases*: the thread's row, and all it did itself, become the barrier's.
 * When the phase is complete, whoever waits for it *acquires* the barrier's row: takes the later time of each pair. So the
 * order is handed on, from a producer's copy over its full barrier, a consumer's reads and its empty barrier to the
 * producer's next copy. __syncthreads and __syncwarp need no rows: what was before them is ordered for all.
 *
 * wgmma and TMA reach shared memory by another road (*proxy*) than threads. What a thread wrote they see only if it did a
 * proxy_fence afterwards, and that is ordered before them too.
 *
 * Blocks that use only __syncthreads and __syncwarp never touch the rows.
 */
#ifndef FA_TRACE_ORDER_H
#define FA_TRACE_ORDER_H

#include "../cpu/simt_internal.h"

#include <stdint.h>

enum { MAX_BARRIERS = 64, MAX_BATCHES = 8 };

/* An mbarrier or a named barrier, known by its address. */
typedef struct {
    const void *address;
    uint32_t *pending, *complete; /* rows: of the arrivals so far, of all phases that are over */
    uint32_t pending_step, complete_step; /* of trace_clock.c: the first that comes after these */
    unsigned copier;              /* the thread that issued the last copy */
} OrderBarrier;

typedef struct {
    uint32_t now;                  /* the block's clock, which ticks only where */
    int touched;                   /*   somebody has touched something since it did last */
    uint32_t barrier_time;         /* of the last __syncthreads */
    uint32_t warp_time[MAX_WARPS]; /* of the last __syncwarp of the whole warp */

    /* the rest only where `rows_used` */
    int rows_used;
    int threads, warps, columns;
    uint32_t *rows; /* one per thread; behind them one for what __syncthreads has made known to all; then the barriers' */
    OrderBarrier barriers[MAX_BARRIERS];
    int barrier_count;
    uint32_t batch_time[MAX_WARPS / 4][MAX_BATCHES]; /* when a warpgroup closed its latest batches of wgmma */
    unsigned batches[MAX_WARPS / 4];
    unsigned products[MAX_WARPS / 4], batch_products[MAX_WARPS / 4][MAX_BATCHES]; /* wgmmas so far, and when these batches were closed */
    unsigned products_done[SIMT_MAX_BLOCK];                                       /* of them, those that a thread has waited for */
    uint32_t bulk_time[MAX_WARPS][MAX_BATCHES]; /* the same of a warp's bulk additions */
    unsigned bulk_batches[MAX_WARPS];
    struct {
        uint32_t *times;
        int count, capacity;
    } fences[SIMT_MAX_BLOCK]; /* each thread's proxy_fences */
} Ordering;

void order_block_begins(Ordering *o);
void order_block_ends(Ordering *o);
uint32_t order_tick(Ordering *o);

/* The words, said by the current thread (a barrier, a __syncwarp: by all that take part). */
void order_barrier(Ordering *o);
void order_warp(Ordering *o, int warp);
void order_release(Ordering *o, const void *barrier, uint32_t step); /* what comes after it is of this step at the earliest */
void order_phase(Ordering *o, const void *barrier);
uint32_t order_acquire(Ordering *o, const void *barrier); /* returns that step */
void order_product(Ordering *o); /* a wgmma begins */
void order_batch(Ordering *o);
void order_wait(Ordering *o, int pending);
void order_bulk_commit(Ordering *o);
void order_bulk_wait(Ordering *o, int pending);
void order_proxy_fence(Ordering *o);

/* Does a batch of wgmmas run that the current thread's warpgroup has closed and the thread has not waited for? */
static inline int order_product_runs(const Ordering *o) {
    const int thread = simt_self->current->number, group = thread / WARPGROUP;
    return o->rows_used && o->batches[group] > 0 &&
           o->batch_products[group][(o->batches[group] - 1) % MAX_BATCHES] > o->products_done[thread];
}

/* The agents that work for the current thread. */
int order_wgmma_agent(Ordering *o);
int order_copy_agent(Ordering *o, const void *barrier);
int order_adder_agent(Ordering *o);

/* The thread in whose name an agent works. */
unsigned order_thread_of(const Ordering *o, int agent);

static inline uint32_t *order_row(const Ordering *o, int thread) { return o->rows + (size_t)thread * o->columns; }

/* Is what `agent` did at `time` ordered before what `thread` does now? */
static inline int order_knows(const Ordering *o, int thread, int agent, uint32_t time) {
    if (time < o->barrier_time && agent < simt_self->threads)
        return 1;
    if (agent / SIMT_WARP == thread / SIMT_WARP && agent < simt_self->threads && time < o->warp_time[thread / SIMT_WARP])
        return 1;
    return o->rows_used && (time < order_row(o, thread)[agent] || time < order_row(o, o->threads)[agent]);
}

/* Has a write by thread `writer` at `time`, that `thread` knows of, been followed by a proxy_fence that it knows of, too? */
int order_published(const Ordering *o, int thread, int writer, uint32_t time);

#endif
