/* memory_need.h - how much memory a run takes, known before any of it is allocated. */
#ifndef FA_MEMORY_NEED_H
#define FA_MEMORY_NEED_H

#include "options.h"

/* Bytes that the selected problem's run holds at a time: inputs, outputs and what judges them. Not the workspace: a
 * variant whose workspace does not fit is a row that says so. */
typedef struct {
    double host, device;
} MemoryNeed;
MemoryNeed memory_need(const Options *options);

/* Ends the program with one line unless the selected problem fits. Keeps the host's part free: the CPU device's allocations cannot
 * take it. */
void check_budget(const Options *options);

#endif
