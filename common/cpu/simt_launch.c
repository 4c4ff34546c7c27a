/* simt_launch.c - how the machine of simt.h spreads the blocks of a grid over the cores. */
#include "simt_internal.h"

#include "../host/allocation.h"
#include "../host/errors.h"
#include "trace_hooks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const SimtLaunch *simt_job;
Order simt_order;
int simt_check_only;

static Worker **workers;
static int worker_count;

/* The launch at hand. Workers 1.. sleep until `launches` grows. */
static atomic_size_t next_block;
static size_t block_count;
static int job_workers, job_running;
static unsigned launches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_begins = PTHREAD_COND_INITIALIZER, job_ends = PTHREAD_COND_INITIALIZER;

void simt_forbid(const void *pointer, size_t bytes) {
#if ADDRESS_SANITIZER
    __asan_poison_memory_region(pointer, bytes);
#else
    (void)pointer, (void)bytes;
#endif
}
void simt_allow(const void *pointer, size_t bytes) {
#if ADDRESS_SANITIZER
    __asan_unpoison_memory_region(pointer, bytes);
#else
    (void)pointer, (void)bytes;
#endif
}

static void run_block(Worker *w, size_t block) {
    blockIdx.x = block % simt_job->grid.x;
    blockIdx.y = block / simt_job->grid.x % simt_job->grid.y;
    blockIdx.z = block / simt_job->grid.x / simt_job->grid.y;
    memset(w->shared, 0xff, simt_job->shared_bytes);
    w->returned = w->gone = 0;
    w->when_stuck = NULL;
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
    trace_block_begins(block);
    do
        simt_run_ready(w);
    while (w->returned < w->threads && w->when_stuck && w->when_stuck());
    if (w->returned < w->threads)
        simt_report_stuck(w);
}

/* A worker's part of the launch at hand. */
static void run_blocks(Worker *w) {
    gridDim = simt_job->grid;
    blockDim = simt_job->block;
    w->threads = simt_job->block.x * simt_job->block.y * simt_job->block.z;
    while (w->fiber_count < w->threads)
        simt_make_fiber(w);
    for (int i = 0; i < w->threads; i++)
        w->fibers[i].index = (SimtIndex){i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    w->shared = w->shared_pages + SHARED_PAGES - (simt_job->shared_bytes + 1023) / 1024 * 1024;
    simt_forbid(w->shared_pages, SHARED_PAGES);
    simt_allow(w->shared, simt_job->shared_bytes);
    for (size_t block; (block = atomic_fetch_add(&next_block, 1)) < block_count;)
        run_block(w, simt_order == REVERSE ? block_count - 1 - block : block);
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

static void start_workers(void) {
    const char *name = getenv("CPU_DEVICE_ORDER");
    if (!name || !strcmp(name, "forward"))
        simt_order = FORWARD;
    else if (!strcmp(name, "reverse"))
        simt_order = REVERSE;
    else if (!strcmp(name, "shuffle"))
        simt_order = SHUFFLE;
    else
        cannot_run("CPU_DEVICE_ORDER=%s: choose forward, reverse or shuffle", name);

    const char *number = getenv("CPU_DEVICE_THREADS");
    if (number) {
        char *end;
        long value = strtol(number, &end, 10);
        if (end == number || *end || value < 1 || value > 1024)
            cannot_run("CPU_DEVICE_THREADS=%s: choose 1 to 1024", number);
        worker_count = (int)value;
    } else {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        worker_count = cores < 1 ? 1 : cores > 1024 ? 1024 : (int)cores;
    }

    workers = host_alloc((size_t)worker_count, sizeof *workers);
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
    return worker_count;
}

int simt_choose_order(int order) {
    simt_workers(); /* which reads CPU_DEVICE_ORDER */
    simt_order = (Order)order;
    return SHUFFLE + 1;
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
    if (simt_check_only)
        return;
    int available = simt_workers();

    /* Stacks are mappings, two a fiber, and Linux allows a process some 65000: with large blocks, fewer workers. */
    int threads = l.block.x * l.block.y * l.block.z;
    int most = 24576 / threads;

    pthread_mutex_lock(&lock);
    simt_job = &l;
    trace_launch_begins();
    block_count = (size_t)l.grid.x * l.grid.y * l.grid.z;
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
    trace_launch_ends();
}
