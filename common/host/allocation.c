/* allocation.c - see allocation.h. */
#include "allocation.h"

#include "errors.h"

#include <stdlib.h>

static void *there(void *memory, size_t count, size_t size) {
    if (!memory)
        cannot_run("out of host memory: %.1f MiB more are needed", (double)count * (double)size / 0x1p20);
    return memory;
}

void *host_alloc(size_t count, size_t size) { return there(calloc(count ? count : 1, size), count, size); }

void *host_resize(void *memory, size_t count, size_t size) { return there(realloc(memory, count * size), count, size); }
