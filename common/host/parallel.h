/* parallel.h - splits a loop over the host's cores. */
#ifndef FA_PARALLEL_H
#define FA_PARALLEL_H

#include <stddef.h>

/* Calls `body` on pieces [begin, end) that cover 0 .. count - 1 exactly once, from several threads at a time, and returns
 * when all are done. Pieces are handed out as threads become free, so rows of unequal cost (causal) still balance; which
 * thread gets which piece varies, so write results by index and they are the same for any number of threads. Inside of a body
 * it calls its own on this thread: all others are busy. */
void parallel_for(size_t count, void (*body)(size_t begin, size_t end, void *context), void *context);

/* All online cores, or the environment's HOST_THREADS, 1 to 1024. Another value there ends the program with exit code 2. */
int host_threads(void);

#endif
