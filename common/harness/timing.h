/* timing.h - how long what a row measures takes, and parts of what a variant does, in rows of their own. */
#ifndef FA_TIMING_H
#define FA_TIMING_H

#include "run.h"

void time_row(Row *row);
void time_parts(const Row *row);
/* Calls `sample(context)`, which returns ms, until it is warm, and then as often as --iters or a budget of time says. Fills in the
 * row's sample: how many, median, least and interquartile range. */
void take_median(Row *row, double (*sample)(void *), void *context);

#endif
