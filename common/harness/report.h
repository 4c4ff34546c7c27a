/* report.h - what a run prints on stdout: a table for people, CSV or JSON rows (records.h) for machines. */
#ifndef FA_REPORT_H
#define FA_REPORT_H

#include "run.h"

void report_start(const Run *run);
void report_row(const Row *row); /* as soon as it is done */
int report_end(const Run *run);  /* returns the exit code (stage.h) */

#endif
