/* simt_report.c - what the machine of simt.h says when a kernel is wrong. */
#include "../host/errors.h"
#include "simt_internal.h"
#include "trace_hooks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

/* Begins the message that ends the program. Only one worker gets to write its own. */
static void begin_message(void) {
    pthread_mutex_lock(&message_lock);
    fflush(stdout);
    end_progress();
    fprintf(stderr, "kernel %s, block (%u,%u,%u)", simt_job->kernel, blockIdx.x, blockIdx.y, blockIdx.z);
}

__attribute__((noreturn)) static void end_message(void) {
    fputc('\n', stderr);
    trace_kernel_fails();
    fflush(stderr);
    _exit(1); /* other workers are still in the middle of their blocks: no clean-up */
}

void simt_fail(const char *file, int line, const char *format, ...) {
    begin_message();
    fprintf(stderr, ", thread %d: ", simt_self->current->number);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (%s:%d)", file, line);
    end_message();
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
    fprintf(stderr, ": no thread can go on");
    for (int i = 0; i < w->threads; i++) {
        if (printed[i])
            continue;
        fputs("\n    ", stderr);
        print_group(w, i, printed);
    }
    end_message();
}
