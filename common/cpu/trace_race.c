/* trace_race.c - finds two threads that touch the same byte, one of them writing, with nothing between that orders them.
 *
 * Beside each byte of device and shared memory lies a *cell*: who wrote it last, and two of those who read it last. Each
 * such *touch* is a thread, a time and a site. Each block has a clock that ticks at barriers; an access is compared with the
 * cell's touches, and one by another thread is ordered before it
 *
 *     - if a __syncthreads came between: the touch's time is before the block's last barrier;
 *     - if both threads are of one warp, and a __syncwarp of the whole warp came between;
 *     - if they are of different blocks, and the pattern of "the last block does the rest" is between: the earlier block did
 *       a __threadfence and then an atomic, and this block has done an atomic later. (Which atomic is not looked at.)
 *
 * Order in which fibers happen to run does not matter: what is looked for is the barrier, not the accident.
 *
 * Two readers are enough. What matters to a later writer is whether anybody but itself has read without being ordered before
 * it. If the two are of different warps, any unordered writer differs from one of them; if all readers were of one warp, two
 * threads of it stand for the rest.
 */
#include "trace_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A touch is packed into 64 bits, so that several workers can read and write cells of device memory without a lock:
 * block 20 bits, thread 10, site 12, time 22. Time begins with 1, so no touch is 0. */
typedef uint64_t Touch;
enum { TIME_BITS = 22, SITE_BITS = 12, THREAD_BITS = 10, BLOCK_BITS = 20 };
_Static_assert(1 << SITE_BITS >= MAX_SITES && 1 << THREAD_BITS >= SIMT_MAX_BLOCK, "a site and a thread fit a touch");

struct Cell {
    _Atomic Touch write, read[2];
};

static Touch pack(uint32_t block, unsigned thread, int site, uint32_t time) {
    return (((Touch)block << THREAD_BITS | thread) << SITE_BITS | (unsigned)site) << TIME_BITS | time;
}
static uint32_t time_of(Touch t) { return t & ((1u << TIME_BITS) - 1); }
static int site_of(Touch t) { return t >> TIME_BITS & ((1 << SITE_BITS) - 1); }
static unsigned thread_of(Touch t) { return t >> (TIME_BITS + SITE_BITS) & ((1 << THREAD_BITS) - 1); }
static uint32_t block_of(Touch t) { return (uint32_t)(t >> (TIME_BITS + SITE_BITS + THREAD_BITS)); }
static unsigned warp_of(Touch t) { return thread_of(t) / SIMT_WARP; }
static int same_warp(Touch a, Touch b) { return block_of(a) == block_of(b) && warp_of(a) == warp_of(b); }
static int same_thread(Touch a, Touch b) { return (a ^ b) >> (TIME_BITS + SITE_BITS) == 0; }

uint32_t race_tick(Recorder *r) {
    if (++r->now == 1u << TIME_BITS)
        simt_give_up(2, "trace: kernel %s passes more than %u barriers a block: choose a smaller shape", simt_job->kernel,
                     1u << TIME_BITS);
    return r->now;
}

/* When each block of the grid released what it had written: the number of its first atomic after a fence; 0: not yet. */
static _Atomic uint32_t *released;
static _Atomic uint32_t atomics;

void race_atomic(Recorder *r) {
    uint32_t number = ++atomics;
    r->seen = number; /* all that was released before this is visible from now on */
    if (r->fenced && !released[r->block])
        released[r->block] = number;
}

/* Is `earlier` (0: nobody) ordered before the present access, `now`, of recorder r's block? */
static int is_ordered(const Recorder *r, Touch earlier, Touch now, int in_shared) {
    if (!earlier || same_thread(earlier, now))
        return 1;
    uint32_t block = block_of(earlier);
    if (block != r->block) {
        /* shared memory of a block that this worker ran earlier, in the same place; it is another block's memory */
        return in_shared || (released[block] && released[block] < r->seen);
    }
    return time_of(earlier) < r->barrier_time || (same_warp(earlier, now) && time_of(earlier) < r->warp_time[warp_of(now)]);
}

static void check(const Recorder *r, Touch earlier, Touch now, size_t offset, int in_shared) {
    if (is_ordered(r, earlier, now, in_shared))
        return;
    if (trace_sites[site_of(earlier)].kind == SITE_ATOMIC && trace_sites[site_of(now)].kind == SITE_ATOMIC)
        return; /* atomics do not race with each other */
    result_add_race((Toucher){site_of(earlier), block_of(earlier), thread_of(earlier)},
                    (Toucher){site_of(now), block_of(now), thread_of(now)}, offset);
}

static void touch_write(const Recorder *r, struct Cell *cell, Touch now, size_t offset, int in_shared) {
    check(r, cell->write, now, offset, in_shared);
    check(r, cell->read[0], now, offset, in_shared);
    check(r, cell->read[1], now, offset, in_shared);
    atomic_store_explicit(&cell->write, now, memory_order_relaxed);
}

static void touch_read(const Recorder *r, struct Cell *cell, Touch now, size_t offset, int in_shared) {
    check(r, cell->write, now, offset, in_shared);
    Touch a = cell->read[0], b = cell->read[1];
    if (is_ordered(r, a, now, in_shared)) /* whoever races with a will race with this thread too, or with b */
        atomic_store_explicit(&cell->read[0], now, memory_order_relaxed);
    else if (is_ordered(r, b, now, in_shared) || (same_warp(a, b) && !same_warp(a, now)))
        atomic_store_explicit(&cell->read[1], now, memory_order_relaxed);
}

void race_access(Recorder *r, const Fiber *thread, int site, size_t offset, size_t bytes) {
    int in_shared = trace_sites[site].tensor == SHARED_TENSOR;
    struct Cell *cell = (in_shared ? r->shared_cells : trace_tensors[trace_sites[site].tensor].cells) + offset;
    size_t end = in_shared ? simt_job->shared_bytes : trace_tensors[trace_sites[site].tensor].bytes;
    Touch now = pack(r->block, (unsigned)thread->number, site, r->now);
    int reads = trace_sites[site].kind == SITE_READ;
    for (size_t i = offset; i < offset + bytes && i < end; i++, cell++)
        if (reads)
            touch_read(r, cell, now, i, in_shared);
        else
            touch_write(r, cell, now, i, in_shared);
}

/* An asynchronous copy was recorded as a write when it was issued. It lands now, at the wait, and is a second write by the
 * same line: so a read anywhere between, or later without a barrier, is a race with it. The line is in the cell. */
void race_copy_lands(Recorder *r, const Fiber *thread, size_t shared_offset) {
    Touch issue = r->shared_cells[shared_offset].write;
    if (issue && block_of(issue) == r->block && thread_of(issue) == (unsigned)thread->number)
        race_access(r, thread, site_of(issue), shared_offset, 16);
}

/* ---- a launch ---- */

static void *zeros(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size); /* large ones cost memory only where they are used */
    if (!memory)
        simt_give_up(2, "trace: out of memory; it needs %zu bytes beside each byte a kernel touches: choose a smaller shape",
                     sizeof(struct Cell));
    return memory;
}

void race_launch_begins(Recorder *const *recorders, int count) {
    size_t blocks = (size_t)simt_job->grid.x * simt_job->grid.y * simt_job->grid.z;
    if (blocks > 1u << BLOCK_BITS)
        simt_give_up(2, "trace: kernel %s has %zu blocks, it can tell %u apart: choose a smaller shape", simt_job->kernel,
                     blocks, 1u << BLOCK_BITS);
    released = zeros(blocks, sizeof *released);
    atomics = 0;
    for (int i = SHARED_TENSOR + 1; i < trace_tensor_count; i++)
        trace_tensors[i].cells = zeros(trace_tensors[i].bytes, sizeof(struct Cell));
    for (int i = 0; i < count; i++)
        recorders[i]->shared_cells = zeros(simt_job->shared_bytes, sizeof(struct Cell));
}

void race_launch_ends(Recorder *const *recorders, int count) {
    free(released);
    for (int i = SHARED_TENSOR + 1; i < trace_tensor_count; i++)
        free(trace_tensors[i].cells);
    for (int i = 0; i < count; i++)
        free(recorders[i]->shared_cells);
}

void race_count_unique(const Tensor *tensor, uint64_t unique[TRACE_DIRECTIONS]) {
    for (size_t i = 0; i < tensor->bytes; i++) {
        Touch write = tensor->cells[i].write;
        unique[TRACE_READ] += tensor->cells[i].read[0] || (write && trace_sites[site_of(write)].kind == SITE_ATOMIC);
        unique[TRACE_WRITE] += write != 0;
    }
}
