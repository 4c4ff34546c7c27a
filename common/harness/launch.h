/* launch.h - what a row launches: its memory, its launch, and a look at what it wrote outside. */
#ifndef FA_LAUNCH_H
#define FA_LAUNCH_H

#include "run.h"

/* A row with a name. */
Row *new_row(Run *run, const Variant *variant, Role role);
/* Its outputs, filled with NaN, and its workspace. Returns 0 if they do not fit; free_row frees what did. */
int alloc_row(Row *row);
void free_row(Row *row);
/* Workspace, filled with zeros or NaN as each piece asks. Returns 0 if not all fits; free_buffers frees what did. */
int alloc_buffers(Buffer *buffers, int count);
void free_buffers(const Buffer *buffers, int count);
/* Enqueues what the row measures, on its tensors and workspace. */
void launch_row(void *row);
/* The row's end: what it wrote outside of its memory, and it is printed. */
void finish_row(Row *row);

#endif
