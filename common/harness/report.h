/* report.h - what a run prints: a table for people, CSV or JSON rows for machines.
 *
 *     Report report = {.stage = &stage, .task = task_of(&stage), .problem = &p, ...};
 *     report_start(&report);
 *     report_row(&report, &row);              as soon as a variant is done
 *     report_end(&report, rows, row_count);
 *
 * Rows go to stdout. Details of a failure go under the table, or to stderr for CSV and JSON.
 */
#ifndef FA_REPORT_H
#define FA_REPORT_H

#include "row.h"

void report_start(const Report *report);
void report_row(const Report *report, const Row *row);

/* The workspace by purpose, what failed or was not checked, and the verdict. */
void report_end(const Report *report, const Row *rows, int count);

#endif
