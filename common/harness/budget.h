/* budget.h - what a run needs of memory, known before anything large is allocated or loaded.
 */
#ifndef FA_BUDGET_H
#define FA_BUDGET_H

#include "options.h"

/* Bytes that the selected problem's run holds at a time: inputs, outputs and what judges them. Not the workspace: a
 * variant whose workspace does not fit is a row that says so. */
typedef struct {
    double host, device;
} MemoryNeed;
MemoryNeed memory_need(const Options *options);

/* Ends the program with one line and exit code 2 if the machine has less memory than memory_need says. Otherwise keeps the host's
 * part free: the CPU device's allocations cannot take it. */
void budget_check(const Options *options);

#endif
