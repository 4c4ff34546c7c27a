/* launch.h - what a row launches: its memory, its launch, and a look at what it wrote outside. */
#ifndef FA_LAUNCH_H
#define FA_LAUNCH_H

#include "run.h"

/* A row with a name. */
Row *new_row(Run *run, const Variant *variant, Role role);
/* Its outputs, filled with NaN, and its workspace. Returns 0 if they do not fit; free_row frees what did. */
int alloc_row(Row *row);
void free_row(Row *row);
/* The device of the i-th of a variant's `count` buffers (stage.h: Variant.devices). */
int device_of_buffer(const Variant *v, const Problem *p, int count, int i);
/* Its workspace, filled with zeros or NaN as each piece asks. Returns 0 if not all fits; free_buffers frees what did. */
int alloc_buffers(const Variant *v, const Problem *p, Buffer *buffers, int count);
void free_buffers(const Buffer *buffers, int count);
/* Enqueues what the row measures, on its tensors and workspace. */
void launch_row(void *row);
/* Once, with what a variant on several devices does before it and after it. */
void launch_whole_row(Row *row);
/* The row's end: what it wrote outside of its memory, and it is printed. */
void finish_row(Row *row);

#endif
