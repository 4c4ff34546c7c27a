/* simt.c - how the machine of simt.h works.
 *
 *     worker      one core: a POSIX thread, its fibers, its shared memory. Worker 0 is the thread that launches
 *     fiber       one CUDA thread of the block at hand. Made once, then used for every block that the worker ever runs
 *     scheduler   the worker's own context, from which a block's first thread is started and to which its last one returns
 *
 * Switching from one fiber to another is a _setjmp (keep my registers) and a _longjmp (take yours): about 14 ns, since the
 * kernel of the operating system has no part in it. makecontext gives a fiber its stack, once. Who may run is kept as bit
 * masks: a bit a lane in each warp, and a bit a warp for those that have such a lane, so that choosing is two instructions.
 */
#undef _FORTIFY_SOURCE /* its longjmp refuses to leave for another stack, which is all we do here */
#ifdef __APPLE__
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#else
#define _GNU_SOURCE
#endif
#include "simt.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ADDRESS_SANITIZER 0
#endif

enum {
    MAX_WARPS = SIMT_MAX_BLOCK / SIMT_WARP,
    STACK_BYTES = 256 * 1024, /* address space; only pages that are used cost memory */
    SHARED_TAIL = 4096,       /* behind the shared memory, for the address sanitizer to guard */
};

__thread SimtIndex threadIdx, blockIdx, blockDim, gridDim;

/* What a thread waits for. Two threads wait together if all of it is equal. */
typedef struct {
    const char *what, *file;
    int line;
    unsigned mask; /* of a collective */
} Place;

typedef struct {
    void *to;
    unsigned char bytes[16];
    int group;
} Copy;

typedef struct {
    jmp_buf context; /* where it goes on */
    SimtIndex index; /* its threadIdx */
    int number;      /* the same as one number, x fastest; lane = number % 32, warp = number / 32 */
    int returned;    /* from the kernel */
    Place place;     /* where it waits, unless it is ready */
    Copy *copies;    /* issued and not landed, oldest first */
    int copy_count, copy_capacity;
    int group; /* of the next copy: how many groups this thread has committed */
    char *stack;
    size_t stack_bytes;
    void *fake_stack; /* the address sanitizer's */
} Fiber;

typedef struct {
    unsigned exists;  /* its lanes: all 32, but for the last warp of an odd block */
    unsigned ready;   /* those that could run */
    unsigned arrived; /* those that wait in a collective */
    void *operands[SIMT_WARP];
} Warp;

typedef struct {
    int number;
    Fiber fibers[SIMT_MAX_BLOCK];
    int fiber_count; /* made so far */
    Fiber scheduler, *current;
    char *shared;

    /* the block at hand */
    int threads, returned;
    Warp warps[MAX_WARPS];
    unsigned warps_ready; /* those with a lane that could run */
    Place barrier;        /* where the first thread to arrive waits */
    int barrier_arrived, barrier_predicates, barrier_result;
    uint32_t random;
} Worker;

static __thread Worker *self;

static enum { FORWARD, REVERSE, SHUFFLE } order;
static Worker **workers;
static int worker_count;

/* The launch at hand. Workers 1.. sleep until `launches` grows. */
static const SimtLaunch *job;
static atomic_size_t next_block;
static size_t block_count;
static int job_workers, job_running;
static unsigned launches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_begins = PTHREAD_COND_INITIALIZER, job_ends = PTHREAD_COND_INITIALIZER;

/* ---- messages ---- */

__attribute__((noreturn, format(printf, 2, 3))) static void give_up(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(code);
}

static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

/* Begins the message that ends the program. Only one worker gets to write its own. */
static void begin_message(void) {
    pthread_mutex_lock(&message_lock);
    fflush(stdout);
    fprintf(stderr, "kernel %s, block (%u,%u,%u)", job->kernel, blockIdx.x, blockIdx.y, blockIdx.z);
}

__attribute__((noreturn)) static void end_message(void) {
    fputc('\n', stderr);
    _exit(1); /* other workers are still in the middle of their blocks: no clean-up */
}

void simt_fail(const char *file, int line, const char *format, ...) {
    begin_message();
    fprintf(stderr, ", thread %d: ", self->current->number);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (%s:%d)", file, line);
    end_message();
}

static int same_place(const Place *a, const Place *b) {
    return a->line == b->line && a->mask == b->mask && (a->what == b->what || !strcmp(a->what, b->what)) &&
           (a->file == b->file || !strcmp(a->file, b->file));
}

static int same_state(const Fiber *a, const Fiber *b) {
    return a->returned == b->returned && (a->returned || same_place(&a->place, &b->place));
}

/* Prints the threads that are in the same state as thread `first` ("threads 0-15,20 wait at ..."), and marks them. */
static void print_group(const Worker *w, int first, char *printed) {
    const Fiber *fiber = &w->fibers[first];
    int count = 0;
    for (int i = first; i < w->threads; i++)
        count += same_state(&w->fibers[i], fiber);

    fprintf(stderr, count > 1 ? "threads " : "thread ");
    for (int i = first; i < w->threads; i++) {
        if (!same_state(&w->fibers[i], fiber))
            continue;
        int last = i;
        while (last + 1 < w->threads && same_state(&w->fibers[last + 1], fiber))
            last++;
        memset(printed + i, 1, last + 1 - i);
        fprintf(stderr, i == first ? "%d" : ",%d", i);
        if (last > i)
            fprintf(stderr, "-%d", last);
        i = last;
    }
    if (fiber->returned) {
        fprintf(stderr, count > 1 ? " have returned" : " has returned");
    } else {
        const Place *place = &fiber->place;
        fprintf(stderr, " %s at %s (%s:%d)", count > 1 ? "wait" : "waits", place->what, place->file, place->line);
        if (place->mask && place->mask != w->warps[first / SIMT_WARP].exists)
            fprintf(stderr, " for the lanes 0x%08x", place->mask);
    }
}

/* Nobody can run and not all have returned: says who waits where. */
__attribute__((noreturn)) static void report_stuck(const Worker *w) {
    static char printed[SIMT_MAX_BLOCK]; /* one worker only comes past begin_message */
    const char *separator = ": ";
    begin_message();
    for (int i = 0; i < w->threads; i++) {
        if (printed[i])
            continue;
        fputs(separator, stderr);
        print_group(w, i, printed);
        separator = "; ";
    }
    end_message();
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
    Fiber *here = self->current;
    if (next == here)
        return;
    self->current = next;
    threadIdx = next->index;
    before_switch(here, next);
    if (_setjmp(here->context) == 0) /* returns 0 now, and once more, not 0, when somebody jumps to here->context */
        _longjmp(next->context, 1);
    after_switch(here);
}

/* The lowest, the highest or some set bit of a mask that is not 0. */
static int choose(Worker *w, unsigned mask) {
    if (order == FORWARD)
        return __builtin_ctz(mask);
    if (order == REVERSE)
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

static void set_ready(Worker *w, int warp, unsigned lanes) {
    w->warps[warp].ready |= lanes;
    w->warps_ready |= 1u << warp;
}

static void clear_ready(Worker *w, const Fiber *fiber) {
    int warp = fiber->number / SIMT_WARP;
    w->warps[warp].ready &= ~(1u << fiber->number % SIMT_WARP);
    if (!w->warps[warp].ready)
        w->warps_ready &= ~(1u << warp);
}

/* A fiber's whole life: runs one thread of every block. */
static void fiber_main(void) {
    Worker *w = self;
    Fiber *fiber = w->current;
#if ADDRESS_SANITIZER
    const void *stack;
    __sanitizer_finish_switch_fiber(NULL, &stack, &w->scheduler.stack_bytes);
    w->scheduler.stack = (char *)stack;
#endif
    for (;;) {
        switch_to(next_fiber(w)); /* at first: back to make_fiber. Then: until a block starts this thread */
        job->thread(job->arguments);
        fiber->returned = 1;
        w->returned++;
        clear_ready(w, fiber);
    }
}

static void make_fiber(Worker *w) {
    int number = w->fiber_count++;
    Fiber *fiber = &w->fibers[number];
    fiber->number = number;

    size_t page = (size_t)sysconf(_SC_PAGESIZE); /* the lowest page stays closed: a stack that overflows faults there */
    char *mapping = mmap(NULL, page + STACK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED || mprotect(mapping + page, STACK_BYTES, PROT_READ | PROT_WRITE) != 0)
        give_up(2, "CPU device: no memory for the stacks of %d threads on %d cores; set CPU_DEVICE_THREADS lower", number + 1,
                worker_count);
    /* All threads have their variables at the same depth. If all stacks began at page boundaries, these would compete for
     * the same few sets of the cache; so each stack begins one cache line lower than the one before. */
    fiber->stack = mapping + page;
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
}

/* ---- waiting ---- */

int simt_barrier(const char *what, int predicate, const char *file, int line) {
    Worker *w = self;
    Fiber *fiber = w->current;
    fiber->place = (Place){what, file, line, 0};
    clear_ready(w, fiber);

    if (w->barrier_arrived == 0)
        w->barrier = fiber->place;
    if (same_place(&w->barrier, &fiber->place)) { /* else it never goes on, and report_stuck will say why */
        w->barrier_predicates += predicate != 0;
        if (++w->barrier_arrived == w->threads) {
            w->barrier_result = w->barrier_predicates;
            w->barrier_arrived = w->barrier_predicates = 0;
            for (int warp = 0; warp * SIMT_WARP < w->threads; warp++)
                set_ready(w, warp, w->warps[warp].exists);
        }
    }
    switch_to(next_fiber(w));
    return w->barrier_result;
}

/* Do all these lanes wait in the very same collective? */
static int all_at(const Worker *w, int warp, unsigned lanes, const Place *place) {
    if (lanes & ~w->warps[warp].arrived)
        return 0;
    for (; lanes; lanes &= lanes - 1)
        if (!same_place(&w->fibers[warp * SIMT_WARP + __builtin_ctz(lanes)].place, place))
            return 0;
    return 1;
}

void simt_collective(const char *what, unsigned mask, void *operands, void (*compute)(void **operands, unsigned lanes),
                     const char *file, int line) {
    Worker *w = self;
    Fiber *fiber = w->current;
    int number = fiber->number / SIMT_WARP, lane = fiber->number % SIMT_WARP;
    Warp *warp = &w->warps[number];
    mask &= warp->exists;
    if (!(mask >> lane & 1))
        simt_fail(file, line, "%s: lane %d is not in its own mask", what, lane);

    fiber->place = (Place){what, file, line, mask};
    warp->operands[lane] = operands;
    warp->arrived |= 1u << lane;
    clear_ready(w, fiber);
    if (all_at(w, number, mask, &fiber->place)) {
        if (compute)
            compute(warp->operands, mask);
        warp->arrived &= ~mask;
        set_ready(w, number, mask);
    }
    switch_to(next_fiber(w));
}

int simt_lane(void) { return self->current->number % SIMT_WARP; }
unsigned simt_warp_lanes(void) { return self->warps[self->current->number / SIMT_WARP].exists; }

void simt_need_full_warp(const char *what, const char *file, int line) {
    if (simt_warp_lanes() != SIMT_FULL_WARP)
        simt_fail(file, line, "%s needs all 32 lanes, this warp has %d", what, __builtin_popcount(simt_warp_lanes()));
}

/* ---- shared memory and asynchronous copies ---- */

void *simt_shared(size_t bytes, const char *file, int line) {
    if (bytes > job->shared_bytes)
        simt_fail(file, line, "uses %zu bytes of shared memory, the launch gave %zu", bytes, job->shared_bytes);
    return self->shared;
}

void simt_need_aligned(const char *what, const void *pointer, size_t bytes, const char *file, int line) {
    if ((uintptr_t)pointer % bytes)
        simt_fail(file, line, "%s: address %p is not aligned to %zu bytes", what, pointer, bytes);
}

void simt_need_shared(const char *what, const void *pointer, size_t bytes, const char *file, int line) {
    uintptr_t offset = (uintptr_t)pointer - (uintptr_t)self->shared;
    if (offset >= job->shared_bytes || job->shared_bytes - offset < bytes)
        simt_fail(file, line, "%s: address %p is not in the block's %zu bytes of shared memory", what, pointer,
                  job->shared_bytes);
    simt_need_aligned(what, pointer, bytes, file, line);
}

void simt_copy(void *shared, const unsigned char bytes[16]) {
    Fiber *fiber = self->current;
    if (fiber->copy_count == fiber->copy_capacity) {
        fiber->copy_capacity = fiber->copy_capacity ? 2 * fiber->copy_capacity : 64;
        fiber->copies = realloc(fiber->copies, fiber->copy_capacity * sizeof *fiber->copies);
        if (!fiber->copies)
            give_up(2, "CPU device: out of memory");
    }
    Copy *copy = &fiber->copies[fiber->copy_count++];
    copy->to = shared;
    copy->group = fiber->group;
    memcpy(copy->bytes, bytes, 16);
    memset(shared, 0xff, 16);
}

void simt_copy_commit(void) { self->current->group++; }

void simt_copy_wait(int pending) {
    Fiber *fiber = self->current;
    int landed = 0;
    for (; landed < fiber->copy_count && fiber->copies[landed].group < fiber->group - pending; landed++)
        memcpy(fiber->copies[landed].to, fiber->copies[landed].bytes, 16);
    fiber->copy_count -= landed;
    memmove(fiber->copies, fiber->copies + landed, fiber->copy_count * sizeof *fiber->copies);
}

/* ---- blocks, workers, launches ---- */

static void run_block(Worker *w, size_t block) {
    blockIdx.x = block % job->grid.x;
    blockIdx.y = block / job->grid.x % job->grid.y;
    blockIdx.z = block / job->grid.x / job->grid.y;
    memset(w->shared, 0xff, job->shared_bytes);
    w->returned = 0;
    w->barrier_arrived = w->barrier_predicates = 0;
    w->random = (uint32_t)block * 2654435761u | 1; /* its own order for every block, the same in every run */

    for (int i = 0; i < w->threads; i++) {
        Fiber *fiber = &w->fibers[i];
        fiber->returned = fiber->copy_count = fiber->group = 0;
    }
    for (int warp = 0; warp * SIMT_WARP < w->threads; warp++) {
        int lanes = w->threads - warp * SIMT_WARP;
        w->warps[warp].exists = lanes < SIMT_WARP ? (1u << lanes) - 1 : SIMT_FULL_WARP;
        w->warps[warp].arrived = 0;
        set_ready(w, warp, w->warps[warp].exists);
    }
    switch_to(next_fiber(w)); /* comes back when nobody is ready */
    if (w->returned < w->threads)
        report_stuck(w);
}

/* A worker's part of the launch at hand. */
static void run_blocks(Worker *w) {
    gridDim = job->grid;
    blockDim = job->block;
    w->threads = job->block.x * job->block.y * job->block.z;
    while (w->fiber_count < w->threads)
        make_fiber(w);
    for (int i = 0; i < w->threads; i++)
        w->fibers[i].index = (SimtIndex){i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
#if ADDRESS_SANITIZER
    __asan_unpoison_memory_region(w->shared, job->shared_bytes);
    __asan_poison_memory_region(w->shared + job->shared_bytes, SIMT_SHARED_LIMIT + SHARED_TAIL - job->shared_bytes);
#endif
    for (size_t block; (block = atomic_fetch_add(&next_block, 1)) < block_count;)
        run_block(w, block);
}

static Worker *make_worker(int number) {
    Worker *w = calloc(1, sizeof *w);
    if (!w || posix_memalign((void **)&w->shared, 128, SIMT_SHARED_LIMIT + SHARED_TAIL) != 0)
        give_up(2, "CPU device: out of memory");
    w->number = number;
    w->current = &w->scheduler;
    return w;
}

static void *worker_main(void *argument) {
    Worker *w = self = argument;
    unsigned seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (launches == seen)
            pthread_cond_wait(&job_begins, &lock);
        seen = launches;
        if (w->number >= job_workers)
            continue; /* not needed this time */
        pthread_mutex_unlock(&lock);
        run_blocks(w);
        pthread_mutex_lock(&lock);
        if (--job_running == 0)
            pthread_cond_signal(&job_ends);
    }
    return NULL;
}

static void start_workers(void) {
    const char *name = getenv("CPU_DEVICE_ORDER");
    if (!name || !strcmp(name, "forward"))
        order = FORWARD;
    else if (!strcmp(name, "reverse"))
        order = REVERSE;
    else if (!strcmp(name, "shuffle"))
        order = SHUFFLE;
    else
        give_up(2, "CPU_DEVICE_ORDER=%s: choose forward, reverse or shuffle", name);

    const char *number = getenv("CPU_DEVICE_THREADS");
    if (number) {
        char *end;
        long value = strtol(number, &end, 10);
        if (end == number || *end || value < 1 || value > 1024)
            give_up(2, "CPU_DEVICE_THREADS=%s: choose 1 to 1024", number);
        worker_count = (int)value;
    } else {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        worker_count = cores < 1 ? 1 : cores > 1024 ? 1024 : (int)cores;
    }

    workers = calloc(worker_count, sizeof *workers);
    if (!workers)
        give_up(2, "CPU device: out of memory");
    for (int i = 0; i < worker_count; i++)
        workers[i] = make_worker(i);
    self = workers[0];
    for (int i = 1; i < worker_count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, workers[i]) != 0)
            give_up(2, "CPU device: cannot start %d threads; set CPU_DEVICE_THREADS lower", worker_count);
        pthread_detach(thread);
    }
}

int simt_workers(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_workers);
    return worker_count;
}

/* What every GPU refuses, refused here too. */
static void check_launch(const SimtLaunch *l) {
    const SimtIndex *grid = &l->grid, *block = &l->block;
    size_t threads = (size_t)block->x * block->y * block->z;
    if (threads == 0 || threads > SIMT_MAX_BLOCK)
        give_up(1, "kernel %s: a block of %ux%ux%u threads; it must have 1 to %d (%s:%d)", l->kernel, block->x, block->y,
                block->z, SIMT_MAX_BLOCK, l->file, l->line);
    if (!grid->x || !grid->y || !grid->z || grid->x > 0x7fffffff || grid->y > 65535 || grid->z > 65535)
        give_up(1, "kernel %s: a grid of %ux%ux%u blocks; it must have 1 to 2147483647, 65535, 65535 (%s:%d)", l->kernel, grid->x,
                grid->y, grid->z, l->file, l->line);
    if (l->shared_bytes > SIMT_SHARED_LIMIT)
        give_up(1, "kernel %s: %zu bytes of shared memory a block; the device has %d (%s:%d)", l->kernel, l->shared_bytes,
                SIMT_SHARED_LIMIT, l->file, l->line);
}

void simt_launch(const SimtLaunch *launch) {
    check_launch(launch);
    int available = simt_workers();

    /* Stacks are mappings, two a fiber, and Linux allows a process some 65000: with large blocks, fewer workers. */
    int threads = launch->block.x * launch->block.y * launch->block.z;
    int most = 24576 / threads;

    pthread_mutex_lock(&lock);
    job = launch;
    block_count = (size_t)launch->grid.x * launch->grid.y * launch->grid.z;
    atomic_store(&next_block, 0);
    job_workers = available < most ? available : most;
    if ((size_t)job_workers > block_count)
        job_workers = (int)block_count;
    job_running = job_workers - 1;
    launches++;
    pthread_cond_broadcast(&job_begins);
    pthread_mutex_unlock(&lock);

    run_blocks(workers[0]);

    pthread_mutex_lock(&lock);
    while (job_running > 0)
        pthread_cond_wait(&job_ends, &lock);
    pthread_mutex_unlock(&lock);
}
