/* parallel.c - see parallel.h. */
#define _POSIX_C_SOURCE 200809L

#include "parallel.h"

#include "errors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, PIECES_PER_THREAD = 16 };

typedef struct {
    size_t count, piece;
    atomic_size_t next; /* first index nobody has taken yet */
    void (*body)(size_t, size_t, void *);
    void *context;
} Loop;

/* Whether this thread is in a body at present. */
static _Thread_local int inside;

static void *take_pieces(void *argument) {
    Loop *loop = argument;
    inside = 1;
    for (size_t begin; (begin = atomic_fetch_add(&loop->next, loop->piece)) < loop->count;) {
        size_t left = loop->count - begin;
        loop->body(begin, begin + (left < loop->piece ? left : loop->piece), loop->context);
    }
    return NULL;
}

int host_threads(void) {
    const char *text = getenv("HOST_THREADS");
    if (!text || !*text) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        return cores > MAX_THREADS ? MAX_THREADS : (int)cores;
    }
    char *end;
    long threads = strtol(text, &end, 10);
    if (*end || threads < 1 || threads > MAX_THREADS)
        cannot_run("HOST_THREADS=%s: choose a whole number from 1 to %d", text, MAX_THREADS);
    return (int)threads;
}

void parallel_for(size_t count, void (*body)(size_t begin, size_t end, void *context), void *context) {
    int was_inside = inside, threads = inside ? 1 : host_threads();
    Loop loop = {.count = count, .body = body, .context = context};
    loop.piece = count / ((size_t)threads * PIECES_PER_THREAD) + 1;

    /* The caller works too. Where the system refuses a thread, the others do its share. */
    pthread_t helpers[MAX_THREADS];
    int started = 0;
    while (started < threads - 1 && (size_t)started + 1 < count &&
           pthread_create(&helpers[started], NULL, take_pieces, &loop) == 0)
        started++;
    take_pieces(&loop);
    inside = was_inside;
    for (int i = 0; i < started; i++)
        pthread_join(helpers[i], NULL);
}
