/* simt.c - how the machine of simt.h runs the threads of a block: fibers, and how they wait for each other.
 *
 * Switching from one fiber to another is a _setjmp (keep my registers) and a _longjmp (take yours): tens of nanoseconds,
 * since the operating system has no part in it. makecontext gives a fiber its stack, once. Who may run is kept as bit
 * masks: a bit per lane in each warp, and a bit per warp for those that have such a lane, so that choosing takes two
 * instructions.
 */
#include "simt_internal.h"

#include "../host/memory.h"
#include "trace_hooks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    STACK_BYTES = 256 * 1024, /* address space; only pages that are used cost memory */
    MAX_GAPS = 24576
};

__thread SimtIndex threadIdx, blockIdx, blockDim, gridDim;
Order simt_order;
int simt_worker_count;

void *simt_map(size_t bytes, size_t gap) {
    char *mapping = mmap(NULL, gap + bytes + gap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    if (mprotect(mapping + gap, bytes, PROT_READ | PROT_WRITE) == 0)
        return mapping + gap;
    munmap(mapping, gap + bytes + gap);
    return NULL;
}

void simt_allow_only(const void *pointer, size_t bytes, const void *pages, size_t page_bytes) {
#if ADDRESS_SANITIZER
    __asan_poison_memory_region(pages, page_bytes);
    __asan_unpoison_memory_region(pointer, bytes);
#else
    (void)pointer, (void)bytes, (void)pages, (void)page_bytes;
#endif
}

/* ---- fibers ---- */

/* The address sanitizer must be told which stack we are on, before and after the switch. */
static void before_switch(Fiber *from, const Fiber *to) {
#if ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#else
    (void)from, (void)to;
#endif
}
static void after_switch(Fiber *to) {
#if ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(to->fake_stack, NULL, NULL);
#else
    (void)to;
#endif
}

/* Goes on with `next`; returns when somebody goes on with the present one. */
static void switch_to(Fiber *next) {
    Fiber *here = simt_self->current;
    if (next == here)
        return;
    simt_self->current = next;
    threadIdx = next->index;
    before_switch(here, next);
    if (_setjmp(here->context) == 0) /* returns 0 now, and once more, not 0, when somebody jumps to here->context */
        _longjmp(next->context, 1);
    after_switch(here);
}

/* The lowest, the highest or some set bit of a mask that is not 0. */
static int choose(Worker *w, unsigned mask) {
    if (simt_order == IN_ORDER)
        return __builtin_ctz(mask);
    if (simt_order == REVERSE)
        return 31 - __builtin_clz(mask);
    w->random ^= w->random << 13, w->random ^= w->random >> 17, w->random ^= w->random << 5; /* Marsaglia's xorshift */
    int turn = w->random & 31;
    unsigned turned = mask >> turn | mask << ((32 - turn) & 31);
    return (__builtin_ctz(turned) + turn) & 31;
}

/* Who runs next: a thread that is ready, or the scheduler if there is none. */
static Fiber *next_fiber(Worker *w) {
    if (!w->warps_ready)
        return &w->scheduler;
    int warp = choose(w, w->warps_ready);
    return &w->fibers[warp * SIMT_WARP + choose(w, w->warps[warp].ready)];
}

void simt_set_ready(Worker *w, int warp, unsigned lanes) {
    w->warps[warp].ready |= lanes;
    w->warps_ready |= 1u << warp;
}

static void clear_ready(Worker *w, const Fiber *fiber) {
    int warp = fiber->number / SIMT_WARP;
    w->warps[warp].ready &= ~(1u << fiber->number % SIMT_WARP);
    if (!w->warps[warp].ready)
        w->warps_ready &= ~(1u << warp);
}

/* All are there that __syncthreads waits for: all threads but those of warps that have returned. On the chip a thread that
 * has returned alone is not waited for either; that it left its warp behind is what is reported here. */
static void barrier_check(Worker *w) {
    if (w->barrier_arrived == 0 || w->barrier_arrived + w->gone < w->threads)
        return;
    TELL_TRACE(barrier);
    w->barrier_result = w->barrier_predicates;
    w->barrier_arrived = w->barrier_predicates = 0;
    for (int warp = 0; warp * SIMT_WARP < w->threads; warp++)
        if (!w->warps[warp].returned)
            simt_set_ready(w, warp, w->warps[warp].exists);
}

/* The current thread's part of that: a warp's last thread takes its warp out of the count. */
static void thread_returns(Worker *w, Fiber *fiber) {
    Warp *warp = &w->warps[fiber->number / SIMT_WARP];
    TELL_TRACE(thread_returns);
    fiber->returned = 1;
    w->returned++;
    clear_ready(w, fiber);
    warp->returned |= 1u << fiber->number % SIMT_WARP;
    if (warp->returned == warp->exists) {
        w->gone += __builtin_popcount(warp->exists);
        barrier_check(w);
    }
}

/* A fiber's whole life: runs one thread of every block. */
static void fiber_main(void) {
    Worker *w = simt_self;
    Fiber *fiber = w->current;
#if ADDRESS_SANITIZER
    const void *stack;
    __sanitizer_finish_switch_fiber(NULL, &stack, &w->scheduler.stack_bytes);
    w->scheduler.stack = (char *)stack;
#endif
    for (;;) {
        switch_to(next_fiber(w)); /* at first: back to simt_make_fiber. Then: until a block starts this thread */
        simt_job->thread(simt_job->arguments);
        thread_returns(w, fiber);
    }
}

int simt_make_fiber(Worker *w) {
    const int number = w->fiber_count;
    Fiber *fiber = &w->fibers[number];
    fiber->number = number;

    /* A stack that overflows faults in the gap. But each gap makes a mapping more, and Linux allows a process some 65000. */
    static atomic_int gaps;
    fiber->stack = simt_map(STACK_BYTES, atomic_fetch_add(&gaps, 1) < MAX_GAPS ? (size_t)sysconf(_SC_PAGESIZE) : 0);
    if (!fiber->stack)
        return 0;
    w->fiber_count++;
    /* All threads have their variables at the same depth. If all stacks began at page boundaries, these would compete for
     * the same few sets of the cache; so each stack begins one cache line lower than the one before. */
    fiber->stack_bytes = STACK_BYTES - 64 * (number % 64);

    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = fiber->stack_bytes;
    context.uc_link = NULL;
    makecontext(&context, fiber_main, 0);

    w->current = fiber;
    before_switch(&w->scheduler, fiber);
    if (_setjmp(w->scheduler.context) == 0)
        setcontext(&context);
    after_switch(&w->scheduler);
    return 1;
}

void simt_run_ready(Worker *w) {
    if (w->warps_ready)
        switch_to(next_fiber(w)); /* comes back when nobody is ready */
}

void simt_yield(double clock, int waits) {
    simt_self->clock = clock;
    simt_self->waits = waits;
    simt_self->scheduler.number = simt_self->current->number; /* for messages */
    if (waits || clock >= simt_self->until) /* a tie: the lowest multiprocessor goes first */
        switch_to(&simt_self->scheduler);
}

/* ---- waiting ---- */

int simt_barrier(const char *what, int predicate, const char *file, int line) {
    Worker *w = simt_self;
    Fiber *fiber = w->current;
    fiber->place = (Place){.what = what, .file = file, .line = line, .caller = __builtin_return_address(0)};
    clear_ready(w, fiber);

    if (w->barrier_arrived == 0)
        w->barrier = fiber->place;
    if (simt_same_place(&w->barrier, &fiber->place)) { /* else it never goes on, and simt_report_stuck will say why */
        w->barrier_predicates += predicate != 0;
        w->barrier_arrived++;
        barrier_check(w);
    }
    switch_to(next_fiber(w));
    return w->barrier_result;
}

/* Do all these lanes wait in the very same collective? */
static int all_at(const Worker *w, int warp, unsigned lanes, const Place *place) {
    if (lanes & ~w->warps[warp].arrived)
        return 0;
    for (; lanes; lanes &= lanes - 1)
        if (!simt_same_place(&w->fibers[warp * SIMT_WARP + __builtin_ctz(lanes)].place, place))
            return 0;
    return 1;
}

void simt_collective(const char *what, unsigned mask, void *operands, void (*compute)(void **operands, unsigned lanes),
                     const char *file, int line) {
    Worker *w = simt_self;
    Fiber *fiber = w->current;
    int number = fiber->number / SIMT_WARP, lane = fiber->number % SIMT_WARP;
    Warp *warp = &w->warps[number];
    mask &= warp->exists;
    if (!(mask >> lane & 1))
        simt_fail(file, line, "%s: lane %d is not in its own mask", what, lane);

    fiber->place =
        (Place){.what = what, .file = file, .line = line, .mask = mask, .caller = __builtin_return_address(0)};
    warp->operands[lane] = operands;
    warp->arrived |= 1u << lane;
    clear_ready(w, fiber);
    if (all_at(w, number, mask, &fiber->place)) {
        trace_collective(what, number, mask);
        if (compute) {
            w->computes = 1;
            compute(warp->operands, mask);
            w->computes = 0;
        }
        warp->arrived &= ~mask;
        simt_set_ready(w, number, mask);
    }
    switch_to(next_fiber(w));
}

void simt_warpgroup(const char *what, void *operands, void (*compute)(void **operands), const char *file, int line) {
    Worker *w = simt_self;
    Fiber *fiber = w->current;
    int number = fiber->number / WARPGROUP;
    Warpgroup *group = &w->warpgroups[number];
    if ((number + 1) * WARPGROUP > w->threads)
        simt_fail(file, line, "%s needs a whole warpgroup of %d threads; this one has %d", what, WARPGROUP, w->threads % WARPGROUP);

    fiber->place = (Place){.what = what, .file = file, .line = line, .caller = __builtin_return_address(0)};
    clear_ready(w, fiber);
    if (group->arrived == 0)
        group->place = fiber->place;
    if (simt_same_place(&group->place, &fiber->place)) { /* else it never goes on, and simt_report_stuck will say why */
        group->operands[fiber->number % WARPGROUP] = operands;
        if (++group->arrived == WARPGROUP) {
            group->arrived = 0;
            for (int i = 0; i < 4; i++)
                trace_collective(i ? NULL : what, 4 * number + i, SIMT_FULL_WARP);
            if (compute) {
                w->computes = 1;
                compute(group->operands);
                w->computes = 0;
            }
            for (int i = 0; i < 4; i++)
                simt_set_ready(w, 4 * number + i, SIMT_FULL_WARP);
        }
    }
    switch_to(next_fiber(w));
}

void simt_sleep(const char *what, const void *on, int detail, SimtDescribe *describe, const char *file, int line) {
    Worker *w = simt_self;
    Fiber *fiber = w->current;
    fiber->place = (Place){what, file, line, 0, on, detail, describe, NULL};
    fiber->sleeps_on = on;
    clear_ready(w, fiber);
    switch_to(next_fiber(w));
}

void simt_wake(const void *on) {
    Worker *w = simt_self;
    for (int i = 0; i < w->threads; i++)
        if (w->fibers[i].sleeps_on == on) {
            w->fibers[i].sleeps_on = NULL;
            simt_set_ready(w, i / SIMT_WARP, 1u << i % SIMT_WARP);
        }
}

void simt_look_later(void) {
    Worker *w = simt_self;
    w->looking = 1;
    w->current->sleeps_on = &w->looking;
    clear_ready(w, w->current);
    switch_to(next_fiber(w));
}

void simt_when_stuck(int (*work)(void)) { simt_self->when_stuck = work; }

unsigned simt_block_count(void) { return simt_self->block_count; }
void **simt_hardware(void) { return &simt_self->hardware; }

int simt_lane(void) { return simt_self->current->number % SIMT_WARP; }
unsigned simt_warp_lanes(void) { return simt_self->warps[simt_self->current->number / SIMT_WARP].exists; }

void simt_need_full_warp(const char *what, const char *file, int line) {
    if (simt_warp_lanes() != SIMT_FULL_WARP)
        simt_fail(file, line, "%s needs all 32 lanes; this warp has %d", what, __builtin_popcount(simt_warp_lanes()));
}

/* ---- shared memory and asynchronous copies ---- */

void *simt_shared(size_t bytes, const char *file, int line) {
    if (bytes > simt_job->shared_bytes)
        simt_fail(file, line, "uses %zu bytes of shared memory, but the launch requested %zu", bytes, simt_job->shared_bytes);
    return simt_self->shared;
}

void simt_need_aligned(const char *what, const void *pointer, size_t bytes, const char *file, int line) {
    if ((uintptr_t)pointer % bytes)
        simt_fail(file, line, "%s: address %p is not aligned to %zu bytes", what, pointer, bytes);
}

void simt_need_shared(const char *what, const void *pointer, size_t bytes, const char *file, int line) {
    uintptr_t offset = (uintptr_t)pointer - (uintptr_t)simt_self->shared;
    if (offset >= simt_job->shared_bytes || simt_job->shared_bytes - offset < bytes)
        simt_fail(file, line, "%s: address %p is not in the block's %zu bytes of shared memory", what, pointer,
                  simt_job->shared_bytes);
    simt_need_aligned(what, pointer, bytes, file, line);
}

void simt_copy(void *shared, const unsigned char bytes[16]) {
    Fiber *fiber = simt_self->current;
    if (fiber->copy_count == fiber->copy_capacity) {
        fiber->copy_capacity = fiber->copy_capacity ? 2 * fiber->copy_capacity : 64;
        fiber->copies = host_resize(fiber->copies, (size_t)fiber->copy_capacity, sizeof *fiber->copies);
    }
    AsyncCopy *copy = &fiber->copies[fiber->copy_count++];
    copy->to = shared;
    copy->group = fiber->group;
    memcpy(copy->bytes, bytes, 16);
    memset(shared, 0xff, 16);
}

void simt_copy_commit(void) { simt_self->current->group++; }

void simt_copy_wait(int pending) {
    Fiber *fiber = simt_self->current;
    int landed = 0;
    for (; landed < fiber->copy_count && fiber->copies[landed].group < fiber->group - pending; landed++) {
        memcpy(fiber->copies[landed].to, fiber->copies[landed].bytes, 16);
        TELL_TRACE(copy_lands, fiber->copies[landed].to);
    }
    fiber->copy_count -= landed;
    memmove(fiber->copies, fiber->copies + landed, fiber->copy_count * sizeof *fiber->copies);
}
