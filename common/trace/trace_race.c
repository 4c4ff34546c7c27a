/* trace_race.c - finds two that touch the same byte, one of them writing, with nothing between that orders them.
 *
 * Beside each byte of device and shared memory lies a *cell*: who wrote it last, and two of those who read it last. Each
 * such *touch* is an agent (a thread, or wgmma or TMA on its behalf: trace_order.h), a time and a site. An access is
 * compared with the cell's touches, and one by another agent is ordered before it
 *
 *     - if both are of one block, and its barriers say so: trace_order.h;
 *     - if they are of different blocks, and the pattern of "the last block does the rest" is between: the earlier block did
 *       a __threadfence and then an atomic, and this block has done an atomic later. (Which atomic is not looked at.)
 *
 * A thread's write that wgmma or TMA meets must be published too, by a proxy_fence of the thread.
 *
 * Order in which fibers happen to run does not matter: what is looked for is the barrier, not the accident.
 *
 * Two readers are enough where all wait for all. What matters to a later writer is whether anybody but itself has read
 * without being ordered before it. If the two are of different warps, any unordered writer differs from one of them; if all
 * readers were of one warp, two threads of it stand for the rest. Where warpgroups hand each other memory a writer may be
 * ordered after one warpgroup's reads and not after another's: so in shared memory each warpgroup has two readers of its own,
 * and the wgmmas of each warp, which are done in order, have one, as have its bulk additions.
 */
#include "trace_internal.h"

#include "../host/memory.h"
#include "../host/errors.h"

#include <stdlib.h>
#include <string.h>

/* A touch is packed into 64 bits: block 19 bits, agent 11, site 12, time 22. Time begins with 1, so no touch is 0. */
typedef uint64_t Touch;
enum { TIME_BITS = 22, SITE_BITS = 12, AGENT_BITS = 11, BLOCK_BITS = 19 };
_Static_assert(1 << SITE_BITS >= MAX_SITES && 1 << AGENT_BITS >= SIMT_MAX_BLOCK + 2 * MAX_WARPS + MAX_BARRIERS,
               "a site and an agent fit a touch");

struct TouchCell {
    Touch write, read[2];
};

static void *zeros(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size); /* large ones cost memory only where they are used */
    if (!memory)
        cannot_run("trace: out of memory; it needs %zu bytes for each byte that a kernel touches: choose a smaller shape",
                   sizeof(struct TouchCell));
    return memory;
}

/* Shared memory has one array of cells for each warpgroup of the block, one after the other; the first has the writes. */
static int warpgroups(void) {
    const SimtIndex *block = &simt_job->block;
    return (int)(block->x * block->y * block->z + WARPGROUP - 1) / WARPGROUP;
}

static Touch pack(uint32_t block, unsigned agent, int site, uint32_t time) {
    return (((Touch)block << AGENT_BITS | agent) << SITE_BITS | (unsigned)site) << TIME_BITS | time;
}
static uint32_t time_of(Touch t) { return t & ((1u << TIME_BITS) - 1); }
static int site_of(Touch t) { return t >> TIME_BITS & ((1 << SITE_BITS) - 1); }
static int agent_of(Touch t) { return t >> (TIME_BITS + SITE_BITS) & ((1 << AGENT_BITS) - 1); }
static uint32_t block_of(Touch t) { return (uint32_t)(t >> (TIME_BITS + SITE_BITS + AGENT_BITS)); }
static int same_warp(Touch a, Touch b) {
    return block_of(a) == block_of(b) && agent_of(a) / SIMT_WARP == agent_of(b) / SIMT_WARP;
}

/* When each block of the grid released what it had written: the number of its first atomic after a fence; 0: not yet. */
static uint32_t *released;
static uint32_t atomics;

void race_atomic(Recorder *r) {
    uint32_t number = ++atomics;
    r->seen = number; /* all that was released before this is visible from now on */
    if (r->fenced && !released[r->block])
        released[r->block] = number;
}

void race_acquire(Recorder *r) { r->seen = atomics + 1; }

/* The access at hand. */
typedef struct {
    const Recorder *recorder;
    Touch touch;
    int agent, thread; /* who touches, and the thread that asked for it */
    int in_shared;
} Access;

/* Is `earlier` (0: nobody) ordered before it? */
static int is_ordered(const Access *now, Touch earlier) {
    const Recorder *r = now->recorder;
    if (!earlier)
        return 1;
    uint32_t block = block_of(earlier);
    if (block != r->block)
        return released[block] && released[block] < r->seen;
    int agent = agent_of(earlier);
    return agent == now->thread || order_knows(&r->order, now->thread, agent, time_of(earlier));
}

static unsigned reports; /* so far */

static void report(const Access *now, Touch earlier, size_t offset, int unpublished) {
    const Recorder *r = now->recorder;
    reports++;
    int agent = agent_of(earlier);
    unsigned thread = block_of(earlier) == r->block ? order_thread_of(&r->order, agent) : (unsigned)agent;
    result_add_race((Toucher){site_of(earlier), block_of(earlier), thread},
                    (Toucher){site_of(now->touch), r->block, (unsigned)now->thread}, offset, unpublished);
}

static void check(const Access *now, Touch earlier, size_t offset) {
    if (is_ordered(now, earlier))
        return;
    if (trace_sites[site_of(earlier)].kind == SITE_ATOMIC && trace_sites[site_of(now->touch)].kind == SITE_ATOMIC)
        return; /* atomics do not race with each other */
    report(now, earlier, offset, 0);
}

/* The last write: wgmma and TMA must find it published. */
static void check_write(const Access *now, Touch write, size_t offset) {
    check(now, write, offset);
    if (now->agent != now->thread && write && block_of(write) == now->recorder->block && is_ordered(now, write) &&
        agent_of(write) < simt_self->threads &&
        !order_published(&now->recorder->order, now->thread, agent_of(write), time_of(write)))
        report(now, write, offset, 1);
}

static void touch_read(const Access *now, struct TouchCell *readers) {
    Touch a = readers->read[0], b = readers->read[1];
    if (is_ordered(now, a)) /* whoever races with a will race with this thread too, or with b */
        readers->read[0] = now->touch;
    else if (is_ordered(now, b) || (same_warp(a, b) && !same_warp(a, now->touch)))
        readers->read[1] = now->touch;
}

/* What reads beside the threads, one for each 16 bytes, which it reads together; made when first needed. number: of a warp, its
 * wgmmas; or that and the number of warps, its bulk additions. */
static Touch *async_readers(Recorder *r, int number) {
    size_t chunks = simt_job->shared_bytes / 16 + 1;
    if (!r->async_readers)
        r->async_readers = zeros(chunks * 2 * r->order.warps, sizeof(Touch));
    return r->async_readers + chunks * (size_t)number;
}
static int reader_number(const Recorder *r, int agent) {
    int wgmma = agent - r->order.threads;
    return wgmma < r->order.warps ? wgmma : wgmma - MAX_BARRIERS;
}

void race_access(Recorder *r, int agent, int site, size_t offset, size_t bytes) {
    Access now = {r, pack(r->block, (unsigned)agent, site, r->order.now), agent, simt_self->current->number,
                  trace_sites[site].tensor == SHARED_TENSOR};
    r->order.touched = 1;
    struct TouchCell *cells = now.in_shared ? r->shared_cells : trace_tensors[trace_sites[site].tensor].cells;
    size_t size = now.in_shared ? simt_job->shared_bytes : trace_tensors[trace_sites[site].tensor].memory.bytes;
    size_t end = offset + bytes < size ? offset + bytes : size;
    int reads = trace_sites[site].kind == SITE_READ, groups = now.in_shared ? warpgroups() : 1;
    Touch *async = reads && agent != now.thread ? async_readers(r, reader_number(r, agent)) : NULL;
    struct TouchCell *readers = cells + (now.in_shared ? now.thread / WARPGROUP * size : 0);
    const int alone = groups == 1 && !r->async_readers; /* a byte's cell is all there is of it */
    unsigned reported = reports + 1;
    Touch write = 0, first = 0, second = 0; /* of the byte before, as they were */
    for (size_t i = offset; i < end; i++) {
        struct TouchCell *c = &cells[i];
        if (alone && reported == reports && c->write == write && c->read[0] == first && c->read[1] == second) {
            c->write = c[-1].write, c->read[0] = c[-1].read[0], c->read[1] = c[-1].read[1]; /* no race, as there */
            continue;
        }
        write = c->write, first = c->read[0], second = c->read[1], reported = reports;
        check_write(&now, cells[i].write, i);
        if (async) {
            async[i / 16] = now.touch;
        } else if (reads) {
            touch_read(&now, &readers[i]);
        } else {
            for (int group = 0; group < groups; group++)
                for (int k = 0; k < 2; k++)
                    check(&now, cells[group * size + i].read[k], i);
            for (int number = 0; now.in_shared && r->async_readers && number < 2 * r->order.warps; number++)
                check(&now, async_readers(r, number)[i / 16], i);
            cells[i].write = now.touch;
        }
    }
}

/* An asynchronous copy was recorded as a write when it was issued. It lands now, at the wait, and is a second write by the
 * same line: so a read anywhere between, or later without a barrier, is a race with it. The line is in the cell. */
void race_copy_lands(Recorder *r, const Fiber *thread, size_t shared_offset) {
    Touch issue = r->shared_cells[shared_offset].write;
    if (issue && block_of(issue) == r->block && agent_of(issue) == thread->number)
        race_access(r, thread->number, site_of(issue), shared_offset, 16);
}

/* ---- a launch ---- */

void race_block_begins(Recorder *r) {
    r->shared_cells = zeros(simt_job->shared_bytes * warpgroups(), sizeof(struct TouchCell));
}

void race_block_ends(Recorder *r) {
    free(r->shared_cells);
    free(r->async_readers);
    r->async_readers = NULL;
    order_block_ends(&r->order);
}

void race_launch_begins(void) {
    size_t blocks = (size_t)simt_job->grid.x * simt_job->grid.y * simt_job->grid.z;
    if (blocks > 1u << BLOCK_BITS)
        cannot_run("trace: kernel %s has %zu blocks, but it can tell only %u apart: choose a smaller shape",
                   simt_job->kernel, blocks, 1u << BLOCK_BITS);
    released = zeros(blocks, sizeof *released);
    atomics = 0;
    for (int i = SHARED_TENSOR + 1; i < trace_tensor_count; i++)
        trace_tensors[i].cells = zeros(trace_tensors[i].memory.bytes, sizeof(struct TouchCell));
}

void race_launch_ends(void) {
    free(released);
    for (TracedTensor *t = trace_tensors + SHARED_TENSOR + 1; t < trace_tensors + trace_tensor_count; t++) {
        for (const struct TouchCell *c = t->cells; c < t->cells + t->memory.bytes; c++) {
            t->unique[TRACE_READ] += c->read[0] || (c->write && trace_sites[site_of(c->write)].kind == SITE_ATOMIC);
            t->unique[TRACE_WRITE] += c->write != 0;
        }
        free(t->cells);
    }
}
