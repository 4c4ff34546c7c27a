/* verdict.h - the last lines: what failed, and whether all is right. */
#ifndef FA_VERDICT_H
#define FA_VERDICT_H

#include "run.h"

/* Elements that are wrong, memory that was written outside; beside CSV and JSON on stderr. */
void print_failures(const Run *run);

/* PASS, FAIL, NOT CHECKED or NOT RUN, below a table; returns the exit code (stage.h). */
int print_verdict(const Run *run);

#endif
