/* simt_report.c - what the machine of simt.h says when a kernel is wrong, and what that tells of: the launch, the thread, the
 * allocations. The lowest of the machine's files: it calls none of the others.
 */
#include "simt_internal.h"

#include "../host/memory.h"
#include "../host/errors.h"
#include "trace_hooks.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const SimtLaunch *simt_job;
__thread Worker *simt_self;
SimtAllocation *simt_allocations;
const TraceHooks *trace_hooks;

static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

/* Begins the message that ends the program. Only one worker gets to write its own. */
static void begin_message(void) {
    const SimtIndex *b = &simt_self->block;
    pthread_mutex_lock(&message_lock);
    fflush(stdout);
    end_progress();
    fprintf(stderr, "kernel %s, block (%u,%u,%u)", simt_job->kernel, b->x, b->y, b->z);
}

__attribute__((noreturn)) static void end_message(int code) {
    fputc('\n', stderr);
    TELL_TRACE(kernel_fails);
    fflush(stderr);
    _exit(code); /* other workers are still in the middle of their blocks: no clean-up */
}

void simt_fail(const char *file, int line, const char *format, ...) {
    begin_message();
    fprintf(stderr, ", thread %d: ", simt_self->current->number);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (%s:%d)", file, line);
    end_message(1);
}

int simt_same_place(const Place *a, const Place *b) {
    return a->line == b->line && a->mask == b->mask && a->on == b->on && a->detail == b->detail &&
           (a->what == b->what || !strcmp(a->what, b->what)) && (a->file == b->file || !strcmp(a->file, b->file));
}

static int same_state(const Fiber *a, const Fiber *b) {
    return a->returned == b->returned && (a->returned || simt_same_place(&a->place, &b->place));
}

/* Prints the threads that are in the same state as thread `first` ("threads 0-15,20 wait at ..."), and marks them. Those
 * that wait for the same thing are one line. */
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
        if (place->describe) {
            char text[200] = "";
            place->describe(place->on, place->detail, text, sizeof text);
            fputs(text, stderr);
        }
    }
}

/* Nobody can run and not all have returned: says who waits where. */
void simt_report_stuck(const Worker *w) {
    static char printed[SIMT_MAX_BLOCK]; /* one worker only comes past begin_message */
    begin_message();
    fprintf(stderr, ": no thread can continue");
    for (int i = 0; i < w->threads; i++) {
        if (printed[i])
            continue;
        fputs("\n    ", stderr);
        print_group(w, i, printed);
    }
    end_message(1);
}

/* ---- an address that is nobody's ---- */

/* The allocation that lies nearest to an address, or shared memory; and how far it is. */
static SimtAllocation nearest_to(const unsigned char *touched, size_t *least) {
    const SimtAllocation shared = {.next = simt_allocations, .pointer = (unsigned char *)simt_self->shared,
                                   .bytes = simt_job->shared_bytes, .purpose = "shared memory"};
    const SimtAllocation *nearest = &shared;
    *least = SIZE_MAX;
    for (const SimtAllocation *a = &shared; a; a = a->next) {
        size_t distance = touched < a->pointer ? (size_t)(a->pointer - touched) : (size_t)(touched - a->pointer) - a->bytes;
        nearest = distance < *least ? a : nearest;
        *least = distance < *least ? distance : *least;
    }
    return *nearest;
}

/* A wrong index mostly leaves its tensor by no more than the tensor's own size, or so many bytes. Beyond both, which tensor is the
 * nearest is chance. */
enum { NEAR = 1 << 20 };

void simt_fault(const void *address) {
    const unsigned char *touched = address;
    size_t distance;
    const SimtAllocation nearest = nearest_to(touched, &distance);
    const Fiber *fiber = simt_self->current;
    int owner = 0;
    while (owner < simt_self->threads && (size_t)((const char *)address - simt_self->fibers[owner].stack) >= simt_self->fibers[owner].stack_bytes)
        owner++;
    begin_message();
    fprintf(stderr, ", thread %d: ", fiber->number);
    if ((size_t)(fiber->stack - (const char *)address) - 1 < (size_t)sysconf(_SC_PAGESIZE))
        fputs("its stack is full", stderr);
    else if (owner < simt_self->threads)
        fprintf(stderr, "%p is a local variable of thread %d, which other threads cannot touch", address, owner);
    else if (!address) /* of the others the processor says no more */
        fputs("the pointer is NULL, misaligned, or not an address", stderr);
    else if (distance > nearest.bytes && distance > NEAR)
        fprintf(stderr, "%p is in no tensor, and not near one", address);
    else
        fprintf(stderr, "%p is in no tensor; it would be byte %td of the nearest, %s, which has %zu", address, touched - nearest.pointer,
                nearest.purpose, nearest.bytes);
    TELL_TRACE(fault, address);
    end_message(2);
}

#if ADDRESS_SANITIZER
void simt_catch_faults(void) {} /* it says more */
#else
/* In a kernel it does not return; the host's own fault happens once more, as if nobody had caught it. */
static void catch_fault(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    if (simt_self && simt_self->current != &simt_self->scheduler)
        simt_fault(info->si_addr);
    signal(signal_number, SIG_DFL);
}

void simt_catch_faults(void) {
    enum { STACK = 64 * 1024 }; /* a stack of its own: the fiber's may be full */
    stack_t stack = {.ss_sp = host_alloc(STACK, 1), .ss_size = STACK};
    struct sigaction action = {.sa_sigaction = catch_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}
#endif
