/* allocation.c - see allocation.h. */
#include "allocation.h"

#include "errors.h"

#include <stdlib.h>

void *host_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        cannot_run("out of host memory: %.1f MiB more are needed", (double)count * (double)size / 0x1p20);
    return memory;
}
