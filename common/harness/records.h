/* records.h - rows for machines: CSV and JSON, the same fields in both. */
#ifndef FA_RECORDS_H
#define FA_RECORDS_H

#include "run.h"

void csv_start(const Run *run); /* the line of field names that CSV begins with */
void record_row(const Row *row);

#endif
