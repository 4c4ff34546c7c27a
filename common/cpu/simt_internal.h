/* simt_internal.h - what the five files of the machine share: simt.c (fibers, and how they wait), simt_block.c (blocks),
 * simt_launch.c (launches, workers), simt_simulation.c (multiprocessors) and simt_report.c (messages). The trace, which looks into the machine, includes it too; nobody else does.
 *
 *     worker      one core: a POSIX thread, its fibers, its shared memory. Worker 0 is the thread that launches. A simulation
 *                 has a worker for each block that is at work, all on that thread
 *     fiber       one CUDA thread of the block at hand. Made once, then used for every block that the worker ever runs
 *     scheduler   the worker's own context, from which a block's first thread is started and to which its last one returns
 */
#ifndef FA_SIMT_INTERNAL_H
#define FA_SIMT_INTERNAL_H

#undef _FORTIFY_SOURCE /* its longjmp refuses to leave for another stack, which is all a fiber does */
#define _GNU_SOURCE
#include "simt.h"

#include <setjmp.h>

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

enum { MAX_WARPS = SIMT_MAX_BLOCK / SIMT_WARP, WARPGROUP = 4 * SIMT_WARP, SHARED_PAGES = 256 * 1024 };

/* What a thread waits for. Threads wait together if all before `describe` is equal. */
typedef struct {
    const char *what, *file;
    int line;
    unsigned mask;          /* of a collective */
    const void *on;         /* of simt_sleep, and */
    int detail;             /*   what it waits for there */
    SimtDescribe *describe; /*   in words */
    const void *caller;     /* for the trace: the address it was called from */
} Place;

typedef struct {
    void *to;
    unsigned char bytes[16];
    int group;
} AsyncCopy;

typedef struct {
    jmp_buf context;       /* where it goes on */
    SimtIndex index;       /* its threadIdx */
    int number;            /* the same as one number, x fastest; lane = number % 32, warp = number / 32 */
    int returned;          /* from the kernel */
    Place place;           /* where it waits, unless it is ready */
    const void *sleeps_on; /* simt_sleep's address, or NULL */
    AsyncCopy *copies;     /* issued and not landed, oldest first */
    int copy_count, copy_capacity;
    int group; /* of the next copy: how many groups this thread has committed */
    char *stack;
    size_t stack_bytes;
    void *fake_stack; /* the address sanitizer's */
} Fiber;

typedef struct {
    unsigned exists;   /* its lanes: all 32, but for the last warp of an odd block */
    unsigned ready;    /* those that could run */
    unsigned arrived;  /* those that wait in a collective */
    unsigned returned; /* from the kernel */
    void *operands[SIMT_WARP];
} Warp;

/* Four warps in a collective of theirs, as at a barrier. */
typedef struct {
    Place place; /* where the first thread to arrive waits */
    int arrived;
    void *operands[WARPGROUP];
} Warpgroup;

typedef struct {
    int number; /* 0: the launching thread */
    Fiber fibers[SIMT_MAX_BLOCK];
    int fiber_count; /* made so far */
    Fiber scheduler, *current;
    int computes; /* 1: the current thread does the work of a collective, with the operands of all */
    char *shared_pages, *shared; /* SHARED_PAGES bytes; the block's, at their end */

    /* the block at hand */
    int threads, returned;
    int gone; /* threads of warps that have returned as a whole: __syncthreads does without them */
    Warp warps[MAX_WARPS];
    Warpgroup warpgroups[MAX_WARPS / 4];
    int (*when_stuck)(void);
    int looking;          /* 1: threads wait in simt_look_later */
    unsigned block_count; /* blocks begun so far */
    unsigned warps_ready; /* those with a lane that could run */
    Place barrier;        /* where the first thread to arrive waits */
    int barrier_arrived, barrier_predicates, barrier_result;
    uint32_t random;
    void *hardware; /* hopper_cpu.h's */

    /* in a simulation */
    SimtIndex block;
    int multiprocessor;
    double clock, until;       /* its own; those of others: up to then it goes on */
    int waits;                 /* until another block changes something */
    struct Recorder *recorder; /* the trace's */
} Worker;

/* The launch at hand, the worker that runs on this POSIX thread, and CPU_DEVICE_ORDER. */
extern const SimtLaunch *simt_job;
extern __thread Worker *simt_self;
typedef enum { IN_ORDER, REVERSE, SHUFFLE, NONE } Order;
extern Order simt_order;
extern int simt_worker_count; /* one for each core */

/* simt.c: gives the worker one more fiber, 0: there is no memory; marks lanes of a warp as able to run; runs fibers until nobody
 * can run. */
int simt_make_fiber(Worker *w);
void simt_set_ready(Worker *w, int warp, unsigned lanes);
void simt_run_ready(Worker *w);

/* simt_block.c: a worker; it gets what the launch at hand needs; begins a block; runs it to the end, or until others shall go first;
 * that returns 0. */
Worker *simt_make_worker(int number);
void simt_prepare(Worker *w);
void simt_begin_block(Worker *w, size_t block);
int simt_run_block(Worker *w);

/* simt_simulation.c: from now on launches are simulated: one POSIX thread does the work of so many multiprocessors, each with a
 * block at a time; the one whose clock is behind all others goes on. Clocks begin at 0. 0: as before. simt_changed: the
 * current block has changed what others may be waiting for.
 * simt.c: the current block's clock is so far; those go first that are behind, and if it waits goes on only after simt_changed,
 * or when all wait. */
void simt_simulate(int multiprocessors);
extern int simt_multiprocessors; /* 0: nothing is simulated */
void simt_simulate_launch(Worker *first, size_t blocks);
void simt_changed(void);
void simt_yield(double clock, int waits);

/* simt_report.c: are the two the same wait? Nobody can run and not all have returned: says who waits where, and ends the
 * program, exit code 1. */
int simt_same_place(const Place *a, const Place *b);
__attribute__((noreturn)) void simt_report_stuck(const Worker *w);

/* The current thread touches what it cannot have: says so, exit code 2. From now on that is done for whatever thread of a kernel
 * touches on this POSIX thread. */
__attribute__((noreturn)) void simt_fault(const void *address);
void simt_catch_faults(void);

#endif
