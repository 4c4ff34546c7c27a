/* tracing.h - the program with --trace: one launch of each variant, and what it did to memory. */
#ifndef FA_TRACING_H
#define FA_TRACING_H

#include "run.h"

/* In place of a run. Returns the exit code: 1 if there is a race or a wrong formula, 2 if none can run. */
int trace_variants(Run *run);

#endif
