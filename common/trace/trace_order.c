/* trace_order.c - the vector clocks of trace_order.h. */
#include "trace_order.h"

#include "../host/memory.h"
#include "../host/errors.h"

#include <stdlib.h>
#include <string.h>

enum { TIME_LIMIT = 1 << 22 }; /* a Touch has no more bits for it */

uint32_t order_tick(Ordering *o) {
    if (!o->touched)
        return o->now;
    o->touched = 0;
    if (++o->now == TIME_LIMIT)
        cannot_run("trace: kernel %s has more than %d arrivals at barriers per block: choose a smaller shape",
                   simt_job->kernel, TIME_LIMIT);
    return o->now;
}

void order_block_begins(Ordering *o) {
    o->now = o->barrier_time = 1;
    for (int warp = 0; warp < MAX_WARPS; warp++)
        o->warp_time[warp] = 1;
    o->rows_used = 0;
}

void order_block_ends(Ordering *o) {
    free(o->rows);
    o->rows = NULL;
    o->rows_used = 0;
}

/* The block's first word that needs rows. */
static void use_rows(Ordering *o) {
    if (o->rows_used)
        return;
    o->rows_used = 1;
    o->threads = simt_self->threads;
    o->warps = (o->threads + SIMT_WARP - 1) / SIMT_WARP;
    o->columns = o->threads + 2 * o->warps + MAX_BARRIERS;
    size_t words = (size_t)(o->threads + 1 + 2 * MAX_BARRIERS) * o->columns;
    if (!o->rows)
        o->rows = host_alloc(words, sizeof *o->rows);
    memset(o->rows, 0, words * sizeof *o->rows);
    memset(o->batches, 0, sizeof o->batches);
    memset(o->bulk_batches, 0, sizeof o->bulk_batches);
    memset(o->products, 0, sizeof o->products);
    memset(o->products_done, 0, sizeof o->products_done);
    o->barrier_count = 0;
    for (int thread = 0; thread < o->threads; thread++)
        o->fences[thread].count = 0;
}

static void join(const Ordering *o, uint32_t *into, const uint32_t *from) {
    for (int i = 0; i < o->columns; i++)
        into[i] = into[i] > from[i] ? into[i] : from[i];
}

static int current_thread(void) { return simt_self->current->number; }

static OrderBarrier *find_barrier(Ordering *o, const void *address) {
    use_rows(o);
    OrderBarrier *b = o->barriers, *end = b + o->barrier_count;
    while (b < end && b->address != address)
        b++;
    if (b == end) {
        if (o->barrier_count == MAX_BARRIERS)
            cannot_run("trace: kernel %s has more than %d mbarriers and named barriers", simt_job->kernel, MAX_BARRIERS);
        uint32_t *rows = order_row(o, o->threads + 1 + 2 * o->barrier_count++);
        *b = (OrderBarrier){address, rows, rows + o->columns, 0, 0, 0};
    }
    return b;
}

void order_barrier(Ordering *o) {
    o->barrier_time = order_tick(o);
    if (o->rows_used) /* of threads barrier_time says more; but what a thread knows of its wgmmas and copies all know now */
        for (int thread = 0; thread < o->threads; thread++)
            join(o, order_row(o, o->threads), order_row(o, thread));
}

void order_warp(Ordering *o, int warp) {
    o->warp_time[warp] = order_tick(o);
    if (!o->rows_used)
        return;
    uint32_t *first = order_row(o, warp * SIMT_WARP);
    int lanes = __builtin_popcount(simt_self->warps[warp].exists);
    for (int lane = 1; lane < lanes; lane++)
        join(o, first, first + (size_t)lane * o->columns);
    for (int lane = 1; lane < lanes; lane++)
        memcpy(first + (size_t)lane * o->columns, first, (size_t)o->columns * sizeof *first);
}

void order_release(Ordering *o, const void *barrier, uint32_t step) {
    OrderBarrier *b = find_barrier(o, barrier);
    int thread = current_thread(), warp = thread / SIMT_WARP;
    uint32_t *row = order_row(o, thread);
    for (int lane = 0; lane < SIMT_WARP && warp * SIMT_WARP + lane < o->threads; lane++) { /* known by __syncwarp */
        uint32_t *time = &row[warp * SIMT_WARP + lane];
        *time = *time > o->warp_time[warp] ? *time : o->warp_time[warp];
    }
    join(o, b->pending, row);
    b->pending[thread] = order_tick(o);
    b->pending_step = step > b->pending_step ? step : b->pending_step;
}

void order_phase(Ordering *o, const void *barrier) {
    OrderBarrier *b = find_barrier(o, barrier);
    join(o, b->complete, b->pending);
    b->complete_step = b->pending_step;
    b->complete[o->threads + o->warps + (b - o->barriers)] = order_tick(o); /* its copies are there */
}

uint32_t order_acquire(Ordering *o, const void *barrier) {
    const OrderBarrier *b = find_barrier(o, barrier);
    join(o, order_row(o, current_thread()), b->complete);
    return b->complete_step;
}

void order_product(Ordering *o) {
    use_rows(o);
    o->products[current_thread() / WARPGROUP]++;
}

void order_batch(Ordering *o) {
    use_rows(o);
    int group = current_thread() / WARPGROUP;
    o->batch_products[group][o->batches[group] % MAX_BATCHES] = o->products[group];
    o->batch_time[group][o->batches[group]++ % MAX_BATCHES] = order_tick(o);
}

void order_wait(Ordering *o, int pending) {
    use_rows(o);
    int thread = current_thread(), group = thread / WARPGROUP;
    if (o->batches[group] <= (unsigned)pending)
        return;
    const unsigned last = (o->batches[group] - 1 - pending) % MAX_BATCHES;
    order_row(o, thread)[order_wgmma_agent(o)] = o->batch_time[group][last];
    o->products_done[thread] = o->batch_products[group][last];
}

void order_bulk_commit(Ordering *o) {
    use_rows(o);
    int warp = current_thread() / SIMT_WARP;
    o->bulk_time[warp][o->bulk_batches[warp]++ % MAX_BATCHES] = order_tick(o);
}

void order_bulk_wait(Ordering *o, int pending) {
    use_rows(o);
    int thread = current_thread(), warp = thread / SIMT_WARP;
    if (o->bulk_batches[warp] > (unsigned)pending)
        order_row(o, thread)[order_adder_agent(o)] = o->bulk_time[warp][(o->bulk_batches[warp] - 1 - pending) % MAX_BATCHES];
}

void order_proxy_fence(Ordering *o) {
    use_rows(o);
    int thread = current_thread();
    if (o->fences[thread].count == o->fences[thread].capacity) {
        o->fences[thread].capacity = 2 * o->fences[thread].capacity + 8;
        o->fences[thread].times = host_resize(o->fences[thread].times, o->fences[thread].capacity, sizeof(uint32_t));
    }
    o->fences[thread].times[o->fences[thread].count++] = order_tick(o);
    o->touched = 1; /* it has a time itself, and so must be told from what comes after */
}

int order_published(const Ordering *o, int thread, int writer, uint32_t time) {
    if (!o->rows_used)
        return 0;
    int low = 0, high = o->fences[writer].count; /* the first fence after the write */
    while (low < high) {
        int middle = (low + high) / 2;
        if (o->fences[writer].times[middle] > time)
            high = middle;
        else
            low = middle + 1;
    }
    return low < o->fences[writer].count &&
           (writer == thread || order_knows(o, thread, writer, o->fences[writer].times[low]));
}

int order_wgmma_agent(Ordering *o) {
    use_rows(o);
    return o->threads + current_thread() / SIMT_WARP;
}

int order_copy_agent(Ordering *o, const void *barrier) {
    OrderBarrier *b = find_barrier(o, barrier);
    b->copier = (unsigned)current_thread();
    return o->threads + o->warps + (int)(b - o->barriers);
}

int order_adder_agent(Ordering *o) {
    use_rows(o);
    return o->threads + o->warps + MAX_BARRIERS + current_thread() / SIMT_WARP;
}

unsigned order_thread_of(const Ordering *o, int agent) {
    if (agent < simt_self->threads)
        return (unsigned)agent;
    if (agent >= o->threads + o->warps + MAX_BARRIERS)
        return (unsigned)(agent - o->threads - o->warps - MAX_BARRIERS) * SIMT_WARP;
    return agent < o->threads + o->warps ? (unsigned)(agent - o->threads) * SIMT_WARP
                                         : o->barriers[agent - o->threads - o->warps].copier;
}
