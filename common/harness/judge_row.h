/* judge_row.h - whether what a row's variant wrote, which is on the host by now, is right. */
#ifndef FA_JUDGE_ROW_H
#define FA_JUDGE_ROW_H

#include "run.h"

/* Fills in the row's comparisons and errors. */
void judge_row(Row *row);

#endif
