/* queues_cpu.c - several devices on this computer (device.h): what is put into their queues runs when they are joined.
 *
 * On GPUs all queues run side by side, and which of two pieces of work comes first is unknown unless one waits for the
 * other. Here one piece runs at a time, and CPU_DEVICE_ORDER (cpu/simt.h) says which: forward makes a copy only when no
 * kernel can go on, and reverse runs a kernel only when no copy can; shuffle draws. So a wait that is missing gives a
 * wrong result in one of the orders: late copies have not arrived when their bytes are read, and early ones overwrite
 * what is still needed.
 */
#define _POSIX_C_SOURCE 200809L
#include "device.h"
#include "../cpu/simt.h"
#include "../cpu/trace_hooks.h"
#include "../host/errors.h"
#include "../host/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    int recorded, reached; /* how many times */
    int forks;             /* how many there were when it was recorded last */
    double ms;             /* when it was reached last */
} Event;

typedef struct {
    enum { LAUNCH, PULL, RECORD, WAIT } kind;
    SimtLaunch launch; /* with a copy of its arguments */
    unsigned char *to;
    const unsigned char *from;
    size_t to_pitch, from_pitch, bytes, rows;
    Event *event;
    int time; /* the number of the recording that is recorded, or waited for */
} Work;

typedef struct {
    Work *work;
    size_t count, done, room;
} WorkList;

static WorkList lists[MAX_DEVICES][2];
static Event events[MAX_DEVICES][MAX_EVENTS];
static double link_bytes[MAX_DEVICES][MAX_DEVICES];
static int here, device_total, fork_count;

int device_peers(void) { return MAX_DEVICES; }
int device_use(int device) { return here = device, 1; }
void device_pull_together(int begins) { (void)begins; }

static void put(Queue queue, Work work) {
    WorkList *list = &lists[here][queue];
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 16;
        Work *larger = host_alloc(list->room, sizeof *larger);
        if (list->count)
            memcpy(larger, list->work, list->count * sizeof *larger);
        free(list->work);
        list->work = larger;
    }
    list->work[list->count++] = work;
}

static int put_launch(const SimtLaunch *launch) {
    Work work = {.kind = LAUNCH, .launch = *launch};
    work.launch.device = here;
    work.launch.arguments = memcpy(host_alloc(launch->argument_bytes, 1), launch->arguments, launch->argument_bytes);
    put(COMPUTE, work);
    return 1;
}

void device_pull(void *to, size_t to_pitch, int from_device, const void *from, size_t from_pitch, size_t bytes,
                 size_t rows) {
    link_bytes[from_device][here] += (double)bytes * (double)rows;
    put(COPY, (Work){.kind = PULL,
                     .to = to,
                     .from = from,
                     .to_pitch = to_pitch,
                     .from_pitch = from_pitch,
                     .bytes = bytes,
                     .rows = rows});
}

void device_record(Queue queue, int event) {
    Event *e = &events[here][event];
    e->forks = fork_count;
    put(queue, (Work){.kind = RECORD, .event = e, .time = ++e->recorded});
}

void device_wait(Queue queue, int device, int event) {
    Event *e = &events[device][event];
    put(queue, (Work){.kind = WAIT, .event = e, .time = e->recorded});
}

double device_busy_ms(int device) {
    double ms = 0;
    for (const Event *e = events[device]; e < events[device] + MAX_DEVICES; e++)
        ms += e[END].forks == fork_count ? e[END].ms - e[BEGIN].ms : 0;
    return ms;
}

double device_link_bytes(int from, int to) { return link_bytes[from][to]; }

/* ---- running it ---- */

static void run(const Work *work, int only_checked) {
    struct timespec now;
    switch (work->kind) {
    case LAUNCH: simt_launch(&work->launch); break;
    case PULL:
        for (size_t row = 0; row < work->rows && !only_checked; row++) {
            memcpy(work->to + row * work->to_pitch, work->from + row * work->from_pitch, work->bytes);
            trace_copied(work->to + row * work->to_pitch, work->from + row * work->from_pitch, work->bytes);
        }
        break;
    case RECORD:
        clock_gettime(CLOCK_MONOTONIC, &now);
        work->event->reached = work->time;
        work->event->ms = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
        break;
    case WAIT: break;
    }
}

/* The queue at this place of an order in which all kernels' queues precede those of copies. */
static WorkList *list_at(int place) { return &lists[place % device_total][place < device_total ? COMPUTE : COPY]; }

static int can_go_on(const WorkList *list) {
    if (list->done == list->count)
        return 0;
    const Work *next = &list->work[list->done];
    return next->kind != WAIT || next->event->reached >= next->time;
}

static WorkList *choose(const char *order) {
    static unsigned random = 1;
    const int lists_in_all = 2 * device_total,
              first = order[0] == 's' ? (int)((random = random * 1664525 + 1013904223) >> 16) : 0;
    for (int i = 0; i < lists_in_all; i++) {
        const int place = (first + i) % lists_in_all;
        WorkList *list = list_at(order[0] == 'r' ? lists_in_all - 1 - place : place);
        if (can_go_on(list))
            return list;
    }
    return NULL; /* all is done: a queue waits only for what was recorded before it */
}

void device_fork(int devices) {
    device_total = devices, fork_count++;
    memset(link_bytes, 0, sizeof link_bytes);
    simt_put_off = put_launch;
}

void device_join(int devices) {
    const char *given = getenv("CPU_DEVICE_ORDER"), *order = given ? given : "forward";
    simt_put_off = NULL;
    device_use(0);
    for (WorkList *list; (list = choose(order));)
        run(&list->work[list->done++], strcmp(order, "none") == 0);
    for (int place = 0; place < 2 * devices; place++) {
        WorkList *list = list_at(place);
        for (size_t i = 0; i < list->count; i++)
            if (list->work[i].kind == LAUNCH)
                free(list->work[i].launch.arguments);
        list->count = list->done = 0;
    }
}
