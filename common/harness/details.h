/* details.h - what stands below a table's rows: the workspace by purpose, errors, noise; on the CPU device what a GPU took. */
#ifndef FA_DETAILS_H
#define FA_DETAILS_H

#include "run.h"

void print_details(const Run *run);

#endif
