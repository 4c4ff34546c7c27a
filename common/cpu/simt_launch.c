/* simt_launch.c - how the machine of simt.h spreads the blocks of a grid over the cores, or simulates multiprocessors. */
#include "simt_internal.h"

#include "../host/memory.h"
#include "../host/errors.h"
#include "trace_hooks.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORKERS = 1024, MAX_MULTIPROCESSORS = 256 };
static Worker *workers[MAX_WORKERS + MAX_MULTIPROCESSORS]; /* the last ones are a simulation's, made when first needed */
static int worker_count;

/* The launch at hand. Workers 1.. sleep until `launches` grows. */
static atomic_size_t next_block;
static size_t block_count;
static int job_workers, job_running;
static unsigned launches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_begins = PTHREAD_COND_INITIALIZER, job_ends = PTHREAD_COND_INITIALIZER;

/* A simulation's. */
enum { MAX_LOOKS = 1000 };
static struct {
    Worker *worker; /* NULL: free */
    double clock;   /* how far its block is, or since when it is free */
} multiprocessors[MAX_MULTIPROCESSORS];
static int multiprocessor_count, looks_in_vain;

static void begin_block(Worker *w, size_t block) {
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

/* Runs its block to the end, or until others shall go first; that returns 0. */
static int run_block(Worker *w) {
    do {
        simt_run_ready(w);
        if (w->warps_ready)
            return 0;
    } while (w->returned < w->threads && ((w->when_stuck && w->when_stuck()) || look_again(w)));
    if (w->returned < w->threads)
        simt_report_stuck(w);
    return 1;
}

/* A worker has what the launch at hand needs. */
static void prepare(Worker *w) {
    gridDim = simt_job->grid;
    blockDim = simt_job->block;
    w->threads = simt_job->block.x * simt_job->block.y * simt_job->block.z;
    while (w->fiber_count < w->threads)
        if (!simt_make_fiber(w))
            cannot_run("CPU device: no memory for %d threads' stacks on %d cores; set CPU_DEVICE_THREADS lower",
                       w->fiber_count + 1, worker_count);
    for (int i = 0; i < w->threads; i++)
        w->fibers[i].index = (SimtIndex){i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    w->shared = w->shared_pages + SHARED_PAGES - (simt_job->shared_bytes + 1023) / 1024 * 1024;
    simt_allow_only(w->shared, simt_job->shared_bytes, w->shared_pages, SHARED_PAGES);
}

/* A worker's part of the launch at hand. */
static void run_blocks(Worker *w) {
    prepare(w);
    for (size_t block; (block = atomic_fetch_add(&next_block, 1)) < block_count;) {
        begin_block(w, simt_order == REVERSE ? block_count - 1 - block : block);
        run_block(w);
    }
}

static Worker *make_worker(int number) {
    Worker *w = host_alloc(1, sizeof *w);
    w->shared_pages = simt_map(SHARED_PAGES, SHARED_PAGES);
    if (!w->shared_pages)
        cannot_run("CPU device: out of memory");
    w->number = number;
    w->current = &w->scheduler;
    return w;
}

/* The first one of this POSIX thread whose block is over. */
static Worker *free_worker(void) {
    int i = 0;
    while (workers[i] && workers[i]->returned < workers[i]->threads)
        i = i ? i + 1 : worker_count;
    return workers[i] ? workers[i] : (workers[i] = make_worker(i));
}

void simt_changed(void) {
    looks_in_vain = 0;
    for (int i = 0; i < multiprocessor_count; i++) {
        if (!multiprocessors[i].worker || !multiprocessors[i].worker->waits)
            continue;
        multiprocessors[i].worker->waits = 0;
        multiprocessors[i].clock = fmax(multiprocessors[i].clock, simt_self->clock);
        simt_self->until = fmin(simt_self->until, multiprocessors[i].clock);
    }
}

/* All blocks that are at work wait. They look once more, since what they wait for may have been changed by a plain write. */
static void all_wait(void) {
    for (int i = multiprocessor_count; i-- > 0;)
        if (multiprocessors[i].worker)
            (simt_self = multiprocessors[i].worker)->waits = 0;
    blockIdx = simt_self->block;
    if (++looks_in_vain == MAX_LOOKS)
        simt_fail(simt_job->file, simt_job->line, "waits for memory that no block changes any more");
}

/* The multiprocessor that is behind all others, of those that can go on or begin a block; -1: none. */
static int first_of(int blocks_left, double *until) {
    int first = -1;
    *until = INFINITY;
    for (int i = 0; i < multiprocessor_count; i++) {
        double clock = multiprocessors[i].clock;
        if (multiprocessors[i].worker ? multiprocessors[i].worker->waits : !blocks_left)
            continue;
        if (first < 0 || clock < multiprocessors[first].clock) {
            *until = first < 0 ? *until : multiprocessors[first].clock;
            first = i;
        } else {
            *until = fmin(*until, clock);
        }
    }
    return first;
}

/* The whole launch at hand. */
static void simulate(void) {
    double begin = 0;
    for (int i = 0; i < multiprocessor_count; i++)
        begin = fmax(begin, multiprocessors[i].clock);
    for (int i = 0; i < multiprocessor_count; i++)
        multiprocessors[i].clock = begin;
    for (size_t block = 0, ended = 0; ended < block_count;) {
        double until;
        int first = first_of(block < block_count, &until);
        if (first < 0) {
            all_wait();
            continue;
        }
        const int begins = !multiprocessors[first].worker;
        if (begins)
            multiprocessors[first].worker = free_worker();
        Worker *w = simt_self = multiprocessors[first].worker;
        w->multiprocessor = first;
        w->clock = multiprocessors[first].clock;
        w->until = until;
        if (begins)
            prepare(w), begin_block(w, block++);
        blockIdx = w->block;
        if (run_block(w)) {
            multiprocessors[first].worker = NULL;
            ended++;
            simt_changed();
        }
        multiprocessors[first].clock = w->clock;
    }
    simt_self = workers[0];
}

void simt_simulate(int count) {
    simt_workers(); /* which makes worker 0 */
    memset(multiprocessors, 0, sizeof multiprocessors);
    multiprocessor_count = count;
}

static void *worker_main(void *argument) {
    Worker *w = simt_self = argument;
    unsigned seen = 0;
    simt_catch_faults();
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

static void read_order(void) {
    static const char *const names[] = {"forward", "reverse", "shuffle", "none"};
    const char *name = getenv("CPU_DEVICE_ORDER");
    for (simt_order = IN_ORDER; name && strcmp(name, names[simt_order]) != 0; simt_order++)
        if (simt_order == NONE)
            cannot_run("CPU_DEVICE_ORDER=%s: choose forward, reverse, shuffle or none", name);
}

static void start_workers(void) {
    read_order();
    const char *number = getenv("CPU_DEVICE_THREADS");
    if (number) {
        char *end;
        long value = strtol(number, &end, 10);
        if (end == number || *end || value < 1 || value > MAX_WORKERS)
            cannot_run("CPU_DEVICE_THREADS=%s: choose 1 to %d", number, MAX_WORKERS);
        worker_count = (int)value;
    } else {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        worker_count = cores < 1 ? 1 : cores > MAX_WORKERS ? MAX_WORKERS : (int)cores;
    }

    for (int i = 0; i < worker_count; i++)
        workers[i] = make_worker(i);
    simt_self = workers[0];
    simt_catch_faults();
    for (int i = 1; i < worker_count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, workers[i]) != 0)
            cannot_run("CPU device: cannot start %d threads; set CPU_DEVICE_THREADS lower", worker_count);
        pthread_detach(thread);
    }
}

int simt_workers(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_workers);
    return multiprocessor_count ? multiprocessor_count : worker_count;
}

size_t simt_shared_bytes(void) {
    static size_t bytes;
    const char *text = getenv("CPU_DEVICE_SHARED");
    char *end = NULL;
    if (!bytes)
        bytes = text ? strtoul(text, &end, 10) : SIMT_SHARED_LIMIT;
    if (end && (end == text || *end || bytes < 48 * 1024 || bytes > SIMT_SHARED_LIMIT))
        cannot_run("CPU_DEVICE_SHARED=%s: choose 49152 to %d bytes", text, SIMT_SHARED_LIMIT);
    return bytes;
}

/* One line about a launch, and the end of the program with exit code 2. */
__attribute__((noreturn, format(printf, 2, 3))) static void refuse_launch(const SimtLaunch *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "kernel %s: ", l->kernel);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (%s:%d)\n", l->file, l->line);
    exit(2);
}

/* What every GPU refuses, refused here too. */
static void check_launch(const SimtLaunch *l) {
    const SimtIndex *grid = &l->grid, *block = &l->block;
    if (!block->x || !block->y || !block->z || block->x > 1024 || block->y > 1024 || block->z > 64 ||
        block->x * block->y * block->z > SIMT_MAX_BLOCK)
        refuse_launch(l, "a block of %ux%ux%u threads; it must have 1 to %d, at most 64 in z", block->x, block->y, block->z,
                      SIMT_MAX_BLOCK);
    if (!grid->x || !grid->y || !grid->z || grid->x > 0x7fffffff || grid->y > 0xffff || grid->z > 0xffff)
        refuse_launch(l, "a grid of %ux%ux%u blocks; it must have 1 to 2147483647 in x, 65535 in y and z", grid->x, grid->y,
                      grid->z);
    if (l->shared_bytes > simt_shared_bytes())
        refuse_launch(l, "%zu bytes of shared memory a block; the device has %zu", l->shared_bytes, simt_shared_bytes());
}

void simt_launch(const SimtLaunch *launch) {
    static char name[128]; /* LAUNCH((f<64>), ...) names the kernel "(f<64>)": messages do without the parentheses */
    SimtLaunch l = *launch;
    if (l.kernel[0] == '(') {
        snprintf(name, sizeof name, "%.*s", (int)strlen(l.kernel) - 2, l.kernel + 1);
        l.kernel = name;
    }
    check_launch(&l);
    int available = simt_workers();
    read_order();
    if (simt_order == NONE)
        return;

    pthread_mutex_lock(&lock);
    simt_job = &l;
    TELL_TRACE(launch_begins);
    block_count = (size_t)l.grid.x * l.grid.y * l.grid.z;
    atomic_store(&next_block, 0);
    job_workers = multiprocessor_count ? 1 : (size_t)available > block_count ? (int)block_count : available;
    job_running = job_workers - 1;
    launches++;
    pthread_cond_broadcast(&job_begins);
    pthread_mutex_unlock(&lock);

    if (multiprocessor_count)
        simulate();
    else
        run_blocks(workers[0]);

    pthread_mutex_lock(&lock);
    while (job_running > 0)
        pthread_cond_wait(&job_ends, &lock);
    pthread_mutex_unlock(&lock);
    TELL_TRACE(launch_ends);
}
