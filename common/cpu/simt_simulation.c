/* simt_simulation.c - how the machine of simt.h does the work of several multiprocessors, each with a clock of its own, on one core. */
#include "simt_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_MULTIPROCESSORS = 256, MAX_LOOKS = 1000 };
static struct {
    Worker *worker; /* NULL: free */
    double clock;   /* how far its block is, or since when it is free */
} multiprocessors[MAX_MULTIPROCESSORS];
static int looks_in_vain;
int simt_multiprocessors;

/* Worker 0, and those that were needed beside it. */
static Worker *workers[MAX_MULTIPROCESSORS];

/* The first one whose block is over. */
static Worker *free_worker(void) {
    int i = 0;
    while (workers[i] && workers[i]->returned < workers[i]->threads)
        i++;
    return workers[i] ? workers[i] : (workers[i] = simt_make_worker(i));
}

void simt_changed(void) {
    looks_in_vain = 0;
    for (int i = 0; i < simt_multiprocessors; i++) {
        if (!multiprocessors[i].worker || !multiprocessors[i].worker->waits)
            continue;
        multiprocessors[i].worker->waits = 0;
        multiprocessors[i].clock = fmax(multiprocessors[i].clock, simt_self->clock);
        simt_self->until = fmin(simt_self->until, multiprocessors[i].clock);
    }
}

/* All blocks that are at work wait. They look once more, since what they wait for may have been changed by a plain write. */
static void all_wait(void) {
    for (int i = simt_multiprocessors; i-- > 0;)
        if (multiprocessors[i].worker)
            (simt_self = multiprocessors[i].worker)->waits = 0;
    blockIdx = simt_self->block;
    if (++looks_in_vain == MAX_LOOKS)
        simt_fail(simt_job->file, simt_job->line, "waits for memory that no block will change anymore");
}

/* The multiprocessor that is behind all others, of those that can go on or begin a block; -1: none. */
static int first_of(int blocks_left, double *until) {
    int first = -1;
    *until = INFINITY;
    for (int i = 0; i < simt_multiprocessors; i++) {
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

void simt_simulate_launch(Worker *first_worker, size_t block_count) {
    double begin = 0;
    workers[0] = first_worker;
    for (int i = 0; i < simt_multiprocessors; i++)
        begin = fmax(begin, multiprocessors[i].clock);
    for (int i = 0; i < simt_multiprocessors; i++)
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
            simt_prepare(w), simt_begin_block(w, block++);
        blockIdx = w->block;
        if (simt_run_block(w)) {
            multiprocessors[first].worker = NULL;
            ended++;
            simt_changed();
        }
        multiprocessors[first].clock = w->clock;
    }
    simt_self = workers[0];
}

void simt_simulate(int count) {
    memset(multiprocessors, 0, sizeof multiprocessors);
    simt_multiprocessors = count;
}
