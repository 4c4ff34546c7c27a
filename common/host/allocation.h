/* allocation.h - host memory that is there, or ends the program with one line and exit code 2. */
#ifndef FA_ALLOCATION_H
#define FA_ALLOCATION_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory for count elements of `size` bytes, zeroed; free() frees it. */
void *host_alloc(size_t count, size_t size);

/* The same memory, which may be NULL, made count elements long; what is new in it is not zeroed. */
void *host_resize(void *memory, size_t count, size_t size);

#ifdef __cplusplus
}
#endif
#endif
