/* records.h - rows for machines: one CSV line or JSON object each, with the same fields. */
#ifndef FA_RECORDS_H
#define FA_RECORDS_H

#include "row.h"

/* The line of field names that CSV begins with. */
void csv_start(const Report *report);
void record_row(const Report *report, const Row *row);

#endif
