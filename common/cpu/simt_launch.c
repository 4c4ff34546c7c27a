/* simt_launch.c - how the machine of simt.h spreads the blocks of a grid over the cores. */
#include "simt_internal.h"

#include "../host/memory.h"
#include "../host/errors.h"
#include "trace_hooks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORKERS = 1024 };
static Worker *workers[MAX_WORKERS];

/* The launch at hand. Workers 1.. sleep until `launches` grows. */
static atomic_size_t next_block;
static size_t block_count;
static int job_workers, job_running;
static unsigned launches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_begins = PTHREAD_COND_INITIALIZER, job_ends = PTHREAD_COND_INITIALIZER;

/* A worker's part of the launch at hand. */
static void run_blocks(Worker *w) {
    simt_prepare(w);
    for (size_t block; (block = atomic_fetch_add(&next_block, 1)) < block_count;) {
        simt_begin_block(w, simt_order == REVERSE ? block_count - 1 - block : block);
        simt_run_block(w);
    }
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
        simt_worker_count = (int)value;
    } else {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        simt_worker_count = cores < 1 ? 1 : cores > MAX_WORKERS ? MAX_WORKERS : (int)cores;
    }

    for (int i = 0; i < simt_worker_count; i++)
        workers[i] = simt_make_worker(i);
    simt_self = workers[0];
    simt_catch_faults();
    for (int i = 1; i < simt_worker_count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, workers[i]) != 0)
            cannot_run("CPU device: cannot start %d threads; set CPU_DEVICE_THREADS lower", simt_worker_count);
        pthread_detach(thread);
    }
}

int simt_workers(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_workers);
    return simt_multiprocessors ? simt_multiprocessors : simt_worker_count;
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
        refuse_launch(l, "a block of %ux%ux%u threads; choose 1 to %d, and at most 64 in z", block->x, block->y, block->z,
                      SIMT_MAX_BLOCK);
    if (!grid->x || !grid->y || !grid->z || grid->x > 0x7fffffff || grid->y > 0xffff || grid->z > 0xffff)
        refuse_launch(l, "a grid of %ux%ux%u blocks; choose 1 to 2147483647 in x, and 1 to 65535 in y and z", grid->x,
                      grid->y, grid->z);
    if (l->shared_bytes > simt_shared_bytes())
        refuse_launch(l, "%zu bytes of shared memory per block; the device has %zu", l->shared_bytes, simt_shared_bytes());
}

int (*simt_put_off)(const SimtLaunch *launch);

void simt_launch(const SimtLaunch *launch) {
    static char name[128]; /* LAUNCH((f<64>), ...) names the kernel "(f<64>)": messages do without the parentheses */
    SimtLaunch l = *launch;
    if (l.kernel[0] == '(') {
        snprintf(name, sizeof name, "%.*s", (int)strlen(l.kernel) - 2, l.kernel + 1);
        l.kernel = name;
    }
    check_launch(&l);
    if (simt_put_off && simt_put_off(launch))
        return;
    int available = simt_workers();
    read_order();
    if (simt_order == NONE)
        return;

    pthread_mutex_lock(&lock);
    simt_job = &l;
    TELL_TRACE(launch_begins);
    block_count = (size_t)l.grid.x * l.grid.y * l.grid.z;
    atomic_store(&next_block, 0);
    job_workers = simt_multiprocessors ? 1 : (size_t)available > block_count ? (int)block_count : available;
    job_running = job_workers - 1;
    launches++;
    pthread_cond_broadcast(&job_begins);
    pthread_mutex_unlock(&lock);

    if (simt_multiprocessors)
        simt_simulate_launch(workers[0], block_count);
    else
        run_blocks(workers[0]);

    pthread_mutex_lock(&lock);
    while (job_running > 0)
        pthread_cond_wait(&job_ends, &lock);
    pthread_mutex_unlock(&lock);
    TELL_TRACE(launch_ends);
}
