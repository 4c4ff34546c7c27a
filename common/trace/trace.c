/* trace.c - sees every access of a kernel to device and shared memory (trace.h says what for).
 *
 * gcc's -fsanitize=thread makes the compiler call __tsan_read4(address), __tsan_write16(address) and so on before each
 * access to memory; variables that live in registers make no calls. Those functions normally belong to a library that looks
 * for data races between POSIX threads. The trace build compiles the kernels with that option, does not link that library,
 * and has the functions here. So a kernel is seen whole and unchanged; its source does not know.
 *
 * The address tells the tensor: a device allocation or the block's shared memory; anything else (a local variable that lives
 * in memory, the kernel's arguments) is not what a GPU would move, and is dropped. The call's return address tells the place
 * in the program, from which trace_site.c finds the source line.
 *
 * What is recorded is simulated (simt_simulate): one POSIX thread runs all blocks, as many at a time as a chip has
 * multiprocessors. Blocks can meet at atomics, and at accesses to memory that is volatile. So before each of these a block
 * lets those go first that are behind it by the model's clock (trace_clock.c); elsewhere it does not matter who goes first.
 * The result does not depend on this computer.
 */
#include "trace_internal.h"

#include "../host/memory.h"

#include <stdlib.h>
#include <string.h>

/* A launch is recorded. Else what the compiler calls does nothing: code of the host is compiled like that, too. */
static int running;
#define RECORDER (running ? simt_self->recorder : NULL)

/* What this worker's current thread has touched last, or is about to. */
typedef struct {
    const char *byte;
    size_t bytes;
    const void *place;
} Touched;
static __thread Touched last;

static void fault(const void *address) {
    const Site site = {.place = last.place};
    SourceLine line;
    if ((size_t)((const char *)address - last.byte) >= last.bytes)
        return;
    source_lines(&site, 1, &line);
    fprintf(stderr, " (%s)", line);
}

/* A local variable of another thread: on a GPU its address means something else here. */
static int is_of_other_thread(const Worker *w, const char *byte) {
    for (const Fiber *other = w->fibers; !w->computes && other < w->fibers + w->threads; other++)
        if ((size_t)(byte - other->stack) < other->stack_bytes)
            return 1;
    return 0;
}

enum { SELF = -1 }; /* the agent that touches: the thread itself */

static void record_for(int agent, const void *address, size_t bytes, SiteKind kind, const void *place, int counted) {
    Recorder *r = RECORDER;
    if (!r)
        return;
    const Worker *w = simt_self;
    const Fiber *thread = w->current;
    const char *byte = address;
    if ((size_t)(byte - thread->stack) < thread->stack_bytes)
        return; /* a local variable */
    last = (Touched){byte, bytes, place};
    const int is_shared = (size_t)(byte - w->shared_pages) < SHARED_PAGES;
    const int tensor = is_shared ? SHARED_TENSOR : find_tensor(byte);
    if (tensor < 0 && is_of_other_thread(w, byte))
        simt_fault(byte);
    if (tensor < 0)
        return; /* the host's memory, or it faults: then fault() is called */
    const SimtAllocation *memory = &trace_tensors[tensor].memory;
    const char *begin = is_shared ? w->shared : (char *)memory->pointer;
    const size_t offset = (size_t)(byte - begin), size = is_shared ? simt_job->shared_bytes : memory->bytes;
    if (offset >= size || bytes > size - offset)
        simt_fault(offset >= size ? byte : begin + size);
    const int site = find_site(place, tensor, kind);
    if (counted)
        warp_access(r, thread->number / SIMT_WARP, thread->number % SIMT_WARP, site, (uintptr_t)byte, (unsigned)bytes);
    race_access(r, agent == SELF ? thread->number : agent, site, offset, bytes);
    clock_access(r, tensor, kind, offset, bytes);
}
static void record(const void *address, size_t bytes, SiteKind kind, const void *place, int counted) {
    record_for(SELF, address, bytes, kind, place, counted);
}

/* ---- what the compiler calls ---- */

#define PLACE __builtin_return_address(0)

/* None of these is inlined or static: the return address must be the kernel's, and the compiler calls them by name. */
#define ACCESS(name, bytes, kind)                                                                                           \
    void name(const void *address) { record(address, bytes, kind, PLACE, 1); }
#define ACCESSES(bytes)                                                                                                     \
    ACCESS(__tsan_read##bytes, bytes, SITE_READ)                                                                            \
    ACCESS(__tsan_write##bytes, bytes, SITE_WRITE)                                                                          \
    ACCESS(__tsan_unaligned_read##bytes, bytes, SITE_READ)                                                                  \
    ACCESS(__tsan_unaligned_write##bytes, bytes, SITE_WRITE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(const void *address, size_t bytes) { record(address, bytes, SITE_READ, PLACE, 1); }
void __tsan_write_range(const void *address, size_t bytes) { record(address, bytes, SITE_WRITE, PLACE, 1); }
void __tsan_init(void) {}

/* Before the current thread does what another block may notice, or notices what another block may have done. */
static void meet(const void *address, size_t bytes, const void *place) {
    if (RECORDER && RECORDER->atomic_parts == 0)
        simt_yield(clock_now(RECORDER), 0);
    last = (Touched){address, bytes, place};
}

static void record_atomic(const void *address, size_t bytes, const void *place) {
    Recorder *r = RECORDER;
    if (!r)
        return;
    if (r->atomic_parts > 0) {
        r->atomic_parts--;
        return;
    }
    race_atomic(r);
    record(address, bytes, SITE_ATOMIC, place, 1);
}

/* It is about to look at this, and to change nothing: perhaps in vain. Or it has changed something. */
static void look(const void *address) {
    if (RECORDER)
        clock_look(RECORDER, address);
}
static void changed(void) {
    if (RECORDER)
        clock_changed();
}

/* Loads are not recorded: how many there are depends on how long a block waits. They order as an atomic does. */
static void load(const void *address, size_t bytes, const void *place) {
    meet(address, bytes, place);
    look(address);
    if (RECORDER)
        race_acquire(RECORDER);
}

/* Atomics are not announced but replaced by calls; the strongest memory order will do for all. The relaxed load that begins
 * a compare-and-swap loop (atomicAdd of floats) is not recorded, its successful swap is. */
#define ATOMICS(bits)                                                                                                       \
    uint##bits##_t __tsan_atomic##bits##_load(uint##bits##_t *from, int order) {                                            \
        if (order != __ATOMIC_RELAXED)                                                                                      \
            load(from, bits / 8, PLACE);                                                                                    \
        last = (Touched){(const char *)from, bits / 8, PLACE};                                                              \
        return __atomic_load_n(from, __ATOMIC_SEQ_CST);                                                                     \
    }                                                                                                                       \
    uint##bits##_t __tsan_atomic##bits##_fetch_add(uint##bits##_t *to, uint##bits##_t value) {                              \
        meet(to, bits / 8, PLACE);                                                                                          \
        value ? changed() : look(to);                                                                                       \
        record_atomic(to, bits / 8, PLACE);                                                                                 \
        return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);                                                             \
    }                                                                                                                       \
    uint##bits##_t __tsan_atomic##bits##_exchange(uint##bits##_t *to, uint##bits##_t value) {                               \
        meet(to, bits / 8, PLACE);                                                                                          \
        *to != value ? changed() : look(to);                                                                                \
        record_atomic(to, bits / 8, PLACE);                                                                                 \
        return __atomic_exchange_n(to, value, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                                       \
    int __tsan_atomic##bits##_compare_exchange_strong(uint##bits##_t *to, uint##bits##_t *expected, uint##bits##_t value) { \
        meet(to, bits / 8, PLACE);                                                                                          \
        if (*to != *expected)                                                                                               \
            look(to);                                                                                                       \
        int swapped = __atomic_compare_exchange_n(to, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
        if (swapped)                                                                                                        \
            changed(), record_atomic(to, bits / 8, PLACE);                                                                  \
        return swapped;                                                                                                     \
    }
ATOMICS(32)
ATOMICS(64)

/* A volatile write is recorded as an atomic, so that it hands on what a fence before it hands on. */
#define VOLATILE(bytes)                                                                                                     \
    void __tsan_volatile_read##bytes(const void *address) { load(address, bytes, PLACE); }                                  \
    void __tsan_volatile_write##bytes(const void *address) {                                                                \
        meet(address, bytes, PLACE);                                                                                        \
        changed();                                                                                                          \
        record_atomic(address, bytes, PLACE);                                                                               \
    }
VOLATILE(4)
VOLATILE(8)

void __tsan_atomic_thread_fence(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (RECORDER)
        RECORDER->fenced = 1;
}

/* The linker (--wrap) sends calls of expf, exp2f and tanhf here. */
float __real_expf(float x);
float __real_exp2f(float x);
float __real_tanhf(float x);
static void count_exponential(const void *place) {
    if (!RECORDER)
        return;
    trace_launch.exponentials++;
    trace_launch.exponentials_beside += order_product_runs(&RECORDER->order);
    clock_work(RECORDER, simt_self->current->number / SIMT_WARP, CLOCK_EXPONENTIAL, place, 0);
}
float __wrap_expf(float x) { return count_exponential(PLACE), __real_expf(x); }
float __wrap_exp2f(float x) { return count_exponential(PLACE), __real_exp2f(x); }
float __wrap_tanhf(float x) { return count_exponential(PLACE), __real_tanhf(x); }

/* At the beginning of each basic block. */
void __sanitizer_cov_trace_pc(void) {
    Recorder *r = RECORDER;
    unsigned flops = r ? flops_pass(PLACE) : 0;
    if (flops)
        trace_launch.flops += flops, clock_flops(r, flops);
}

/* ---- what the machine and the twins call, in a launch that is recorded: trace_hooks.h ---- */

static void access_by_twin(const void *address, size_t bytes, int writes, int counted) {
    record(address, bytes, writes ? SITE_WRITE : SITE_READ, PLACE, counted);
}

static void async_read(const void *address, size_t bytes) {
    Recorder *r = simt_self->recorder;
    record_for(order_wgmma_agent(&r->order), address, bytes, SITE_READ, PLACE, 0);
    clock_async(r, PLACE);
}
static void bulk_add(const void *to, const void *shared, size_t bytes) {
    meet(to, bytes, PLACE);
    record_atomic(to, bytes, PLACE);
    record_for(order_adder_agent(&simt_self->recorder->order), shared, bytes, SITE_READ, PLACE, 0);
}
static void async_write(const void *address, size_t bytes, const void *barrier) {
    Recorder *r = simt_self->recorder;
    record_for(order_copy_agent(&r->order, barrier), address, bytes, SITE_WRITE, PLACE, 1);
    int warp = simt_self->current->number / SIMT_WARP; /* a request of its own: the thread need not meet others any more */
    warp_flush(r, warp, r->warps[warp].touched_count - 1);
}

static void release(const void *barrier) {
    Recorder *r = simt_self->recorder;
    order_release(&r->order, barrier, clock_step(r) + 1);
}
static void phase(const void *barrier) { order_phase(&simt_self->recorder->order, barrier); }
static void acquire(const void *barrier) {
    Recorder *r = simt_self->recorder;
    clock_acquire(r, order_acquire(&r->order, barrier));
}
static void batch(void) { order_batch(&simt_self->recorder->order); }
static void wait_for_batches(int pending) { order_wait(&simt_self->recorder->order, pending); }
static void bulk_commit(void) { order_bulk_commit(&simt_self->recorder->order); }
static void bulk_wait(int pending) { order_bulk_wait(&simt_self->recorder->order, pending); }
static void proxy_fence(void) { order_proxy_fence(&simt_self->recorder->order); }

static void wide_atomic(const void *address, int words) {
    meet(address, 4 * (size_t)words, PLACE);
    record_atomic(address, 4 * (size_t)words, PLACE);
    simt_self->recorder->atomic_parts = words;
}

static void copy_lands(const void *shared) {
    race_copy_lands(simt_self->recorder, simt_self->current, (size_t)((const char *)shared - simt_self->shared));
}

static void block_begins(size_t block) {
    Recorder *r = simt_self->recorder = simt_self->recorder ? simt_self->recorder : host_alloc(1, sizeof *r);
    r->block = (uint32_t)block;
    r->fenced = r->seen = 0;
    order_block_begins(&r->order);
    for (int warp = 0; warp < MAX_WARPS; warp++)
        r->warps[warp].returned = 0;
    race_block_begins(r);
    clock_block_begins(r);
}

static void barrier(void) {
    Recorder *r = simt_self->recorder;
    trace_launch.barriers++;
    order_barrier(&r->order);
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        warp_flush(r, warp, 0);
    clock_barrier(r, simt_self->barrier.what, simt_self->barrier.caller);
}

static void collective(const char *what, int warp, unsigned lanes) {
    Recorder *r = simt_self->recorder;
    const Place *at = &simt_self->current->place;
    if (what) {
        result_count(trace_launch.collectives, what, 1);
        if (strncmp(what, "wgmma_m", 7) == 0)
            order_product(&r->order);
        clock_work(r, warp, what, at->what == what ? at->caller : NULL, result_flops(what));
    }
    if (lanes != simt_self->warps[warp].exists)
        return; /* a part of the warp: the others may be anywhere */
    warp_flush(r, warp, 0);
    /* Of all collectives, only this one orders memory: a shuffle exchanges registers and promises nothing else. */
    if (what && strcmp(what, "__syncwarp") == 0)
        order_warp(&r->order, warp), clock_warp(r, warp);
}

static void thread_returns(void) {
    Recorder *r = simt_self->recorder;
    int number = simt_self->current->number, warp = number / SIMT_WARP;
    r->warps[warp].returned |= 1u << number % SIMT_WARP;
    if (r->warps[warp].returned == simt_self->warps[warp].exists)
        warp_flush(r, warp, 0);
    if (simt_self->returned + 1 == simt_self->threads) {
        clock_block_ends(r);
        race_block_ends(r);
    }
}

static void launch_begins(void) {
    running = 1;
    memset(&trace_launch, 0, sizeof trace_launch);
    list_tensors();
    race_launch_begins();
    clock_launch_begins();
}

static void launch_ends(void) {
    running = 0; /* the launching thread goes on with code of the host */
    race_launch_ends();
    result_add_launch();
    flops_launch_ends(result_kernel());
    clock_launch_ends();
}

static void kernel_fails(void) { trace_print_races(trace_end(), stderr); }

static const TraceHooks HOOKS = {
    launch_begins, launch_ends,      kernel_fails, fault,       block_begins, barrier,     collective, thread_returns,
    copy_lands,    access_by_twin,   async_read,   async_write, bulk_add,     release,     phase,      acquire,
    batch,         wait_for_batches, bulk_commit,  bulk_wait,   proxy_fence,  wide_atomic, copy_made,
};

/* ---- a trace ---- */

void trace_begin(const char *chip) {
    trace_chip = find_chip(chip);
    result_clear();
    copy_clear();
    flops_read_program();
    simt_simulate(trace_chip->multiprocessors);
    trace_hooks = &HOOKS;
}

const Trace *trace_end(void) {
    running = 0;
    trace_hooks = NULL;
    simt_simulate(0);
    result_finish();
    return &trace_result;
}
